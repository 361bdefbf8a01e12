package cli

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	// certificateEvery is how often the files of the certificate are looked at, while clients connect.
	certificateEvery = 10 * time.Second
	// certificateIn is how long a connection waits for the files: those of a network may hang.
	certificateIn = time.Second
)

// certificate is a certificate in files. It reads the files again when they have changed, so a renewal of the
// certificate needs no restart.
type certificate struct {
	cert, key string // the files
	logger    *slog.Logger

	mu      sync.Mutex
	pair    *tls.Certificate // guarded by mu
	of      [2]time.Time     // the modification times of the files of pair; guarded by mu
	looked  time.Time        // guarded by mu
	looking bool             // guarded by mu
}

// readCertificate reads the files for the first time, when an error ends the command.
func readCertificate(cert, key string, logger *slog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, logger: logger}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// read reads the files unless they are those of pair.
func (c *certificate) read() error {
	of, err := c.changed()
	if err != nil {
		return err
	}
	c.mu.Lock()
	same := of == c.of
	c.mu.Unlock()
	if same {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pair, c.of, c.looked = &pair, of, time.Now()
	return nil
}

func (c *certificate) changed() (of [2]time.Time, err error) {
	for i, path := range []string{c.cert, c.key} {
		info, err := os.Stat(path)
		if err != nil {
			return of, err
		}
		of[i] = info.ModTime()
	}
	return of, nil
}

// get is the certificate of a connection that begins. While the files cannot be read, such as half-way through a
// renewal, it is the one that was read last.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if looked := c.look(); looked != nil {
		select {
		case <-looked:
		case <-time.After(certificateIn):
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pair, nil
}

// look begins to look at the files. The channel is closed when that has ended. It is nil if the last look was just now,
// or has not ended.
func (c *certificate) look() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.looking || time.Since(c.looked) < certificateEvery {
		return nil
	}
	c.looking, c.looked = true, time.Now()
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		if err := c.read(); err != nil {
			c.logger.Warn("the certificate cannot be read, the one before stays in use", "err", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.looking = false
	}()
	return looked
}
