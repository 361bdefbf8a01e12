package cli

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateEvery is how often the files of the certificate are looked at, while clients connect.
const certificateEvery = 10 * time.Second

// certificate is a certificate in files. It reads the files again when they have changed, so a renewal of the
// certificate needs no restart.
type certificate struct {
	cert, key string // the files
	logger    *slog.Logger

	mu     sync.Mutex
	pair   *tls.Certificate // guarded by mu
	of     [2]time.Time     // the modification times of the files of pair; guarded by mu
	looked time.Time        // guarded by mu
}

// readCertificate reads the files for the first time, when an error ends the command.
func readCertificate(cert, key string, logger *slog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, logger: logger}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *certificate) read() error {
	of, err := c.changed()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < certificateEvery {
		return c.pair, nil
	}
	c.looked = time.Now()
	if of, err := c.changed(); err == nil && of == c.of {
		return c.pair, nil
	}
	if err := c.read(); err != nil {
		c.logger.Warn("the certificate cannot be read, the one before stays in use", "err", err)
	}
	return c.pair, nil
}
