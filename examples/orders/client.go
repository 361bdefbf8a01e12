package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// clients place orders by HTTP, as other services would.
type clients struct {
	url  func() string // of the service, which moves when it is restarted
	http *http.Client

	mu         sync.Mutex
	told       []string      // guarded by mu; ids of the orders that were accepted
	changed    chan struct{} // guarded by mu; closed when told grows
	retries    int64         // guarded by mu
	duplicates int64         // guarded by mu
}

func newClients(url func() string) *clients {
	return &clients{
		url: url, changed: make(chan struct{}),
		http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: concurrency}},
	}
}

// concurrency is how many customers place orders at a time.
const concurrency = 32

// place places all orders, those of a customer one after the other: a customer waits for the answer before the next.
func (c *clients) place(ctx context.Context, orders, customers int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for first := range concurrency {
		wg.Go(func() {
			for n := range orders {
				customer := n % customers
				if customer%concurrency != first {
					continue
				}
				if err := c.order(ctx, order{
					ID: fmt.Sprintf("order-%05d", n), Customer: fmt.Sprintf("customer-%03d", customer),
					Article: "apples", Cents: int64(n%97 + 1),
				}); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// Pauses before a request is sent again.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// order places an order. If there is no answer, or one that says "later", the client does not know whether the order
// was accepted. It then sends the same request again, with the same id, until there is an answer.
func (c *clients) order(ctx context.Context, o order) error {
	body, err := json.Marshal(struct {
		ID       string `json:"id"`
		Customer string `json:"customer"`
		Article  string `json:"article"`
		Cents    int64  `json:"cents"`
	}{o.ID, o.Customer, o.Article, o.Cents})
	if err != nil {
		return err
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		status, text, err := c.post(ctx, body)
		switch {
		case err == nil && (status == http.StatusCreated || status == http.StatusOK):
			c.accept(o.ID, status == http.StatusOK)
			return nil
		case err == nil && status < http.StatusInternalServerError:
			return fmt.Errorf("order %s: %d %s", o.ID, status, text)
		}
		c.mu.Lock()
		c.retries++
		c.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *clients) post(ctx context.Context, body []byte) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url()+"/orders", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, maxOrder))
	return answer.StatusCode, string(said), err
}

func (c *clients) accept(id string, duplicate bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, id)
	if duplicate {
		c.duplicates++
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// reach waits until n orders are accepted.
func (c *clients) reach(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		there, changed := len(c.told) >= n, c.changed
		c.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
