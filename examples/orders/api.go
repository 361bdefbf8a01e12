package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// api serves HTTP until ctx ends.
//
//	POST /orders                    an order as JSON: id, customer, article, cents
//	GET  /orders/{id}               an order with its status
//	GET  /customers/{id}/ledger     what was booked
//
// and what each process serves, see operator.
func (p *process) api(ctx context.Context) error { return p.serve(ctx, p.routes()) }

// routes refuses the requests that web pages of other sites send, because a browser on this machine reaches the
// loopback addresses, too. http.CrossOriginProtection refuses their writes. The check of the host refuses their reads:
// such a site can give the address 127.0.0.1 to its own name, and the browser then takes the answer for the site's own.
func (p *process) routes() http.Handler {
	mux := p.operator()
	mux.HandleFunc("POST /orders", p.postOrder)
	mux.HandleFunc("GET /orders/{id}", p.getOrder)
	mux.HandleFunc("GET /customers/{id}/ledger", p.getLedger)
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ownName(r) {
			http.Error(w, "this service is reached as localhost, or by its address", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// ownName reports whether the host that the client has asked for may be this service. On a loopback address only
// localhost and addresses may be.
func ownName(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !at.IP.IsLoopback() {
		return true
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil
}

// serve answers requests until ctx ends, and lets those under way finish.
func (p *process) serve(ctx context.Context, h http.Handler) error {
	listener, err := net.Listen("tcp", p.listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	fmt.Fprintf(p.stdout, "http://%s\n", listener.Addr())
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return server.Shutdown(ctx)
}

// maxOrder bounds the body of a request.
const maxOrder = 16 << 10 // bytes

// postOrder answers 201 if the order is accepted, 200 if it was before. With any other answer, or with none at all, the
// client does not know, and sends the request again, with the same id.
func (p *process) postOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		http.Error(w, "no order: "+err.Error(), http.StatusBadRequest)
		return
	}
	if o.ID == "" || o.Customer == "" || o.Article == "" || o.Cents <= 0 || o.Place != 0 || o.Status != "" {
		http.Error(w, "an order has an id, a customer, an article, and cents above 0", http.StatusBadRequest)
		return
	}
	// The request's context ends when the client goes away, because the client does not wait for the answer then.
	o, duplicate, err := p.shop.place(r.Context(), o)
	switch {
	case err != nil:
		refuse(w, r, err)
	case duplicate:
		writeJSON(w, http.StatusOK, o)
	default:
		writeJSON(w, http.StatusCreated, o)
	}
}

func (p *process) getOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	_, err := kv.Run(r.Context(), p.shop.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		o, err = p.shop.readOrder(r.Context(), tx.Snapshot(), r.PathValue("id"))
		return err
	})
	if err != nil {
		refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, o)
}

func (p *process) getLedger(w http.ResponseWriter, r *http.Request) {
	entries := []entry{}
	for row, err := range kv.Rows(r.Context(), p.shop.db, ledgerOf(r.PathValue("id"))) {
		var e entry
		if err == nil {
			_, e, err = readLine(row)
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		entries = append(entries, e)
	}
	writeJSON(w, http.StatusOK, entries)
}

// refuse answers with an error. If the client may send the request again, the status is 503, with Retry-After.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errNoOrder), errors.Is(err, layer.ErrNotDead), errors.Is(err, layer.ErrNotPaused):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errOtherOrder):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, layer.ErrLimit), errors.Is(err, layer.ErrInvalidUTF8), errors.Is(err, layer.ErrInvalidID),
		errors.Is(err, layer.ErrOptions):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, layer.ErrFull), errors.Is(err, layer.ErrClosed), kv.Code(err) != 0, r.Context().Err() != nil:
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		slog.Error("request failed", "path", r.URL.Path, "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(value); err != nil {
		slog.Warn("answer was not sent", "error", err) // the client has gone
	}
}
