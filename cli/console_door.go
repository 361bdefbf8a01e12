package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"fdbfifo/console"
)

// door says where the console listens, and how it recognizes its clients.
type door struct {
	listen     string
	socketMode string
	cert, key  string
	clientCA   string
	userHeader string
	operators  []string
	secretFile string
}

// The door --listen unix:PATH, and the modes that its socket may have.
const unixPrefix = "unix:"

var socketModes = map[string]fs.FileMode{"0600": 0o600, "0660": 0o660}

// secretHeader is the header in which a proxy sends the secret of --proxy-secret.
const secretHeader = "Fdbfifo-Proxy-Secret"

// minSecret is the least length of that secret, in bytes.
const minSecret = 16

// socket returns the path of the Unix socket to listen on.
func (d *door) socket() (path string, ok bool) { return strings.CutPrefix(d.listen, unixPrefix) }

// check returns an error if flags cannot be combined.
func (d *door) check() error {
	_, unix := d.socket()
	switch {
	case (d.cert == "") != (d.key == ""):
		return usagef("--tls-cert and --tls-key need each other: give both")
	case d.clientCA != "" && d.cert == "":
		return usagef("--tls-client-ca needs --tls-cert and --tls-key")
	case unix && d.cert != "":
		return usagef("--listen %s takes no TLS: the mode of the socket says who may open it", d.listen)
	case d.socketMode != "" && !unix:
		return usagef("--socket-mode is for --listen unix:PATH")
	case d.socketMode != "" && socketModes[d.socketMode] == 0:
		return usagef("--socket-mode is %s: 0600 (this user alone) or 0660 (its group, too)", d.socketMode)
	case len(d.operators) > 0 && d.userHeader == "":
		return usagef("--operators needs --user-header")
	case d.secretFile != "" && d.userHeader == "":
		return usagef("--proxy-secret needs --user-header")
	case http.CanonicalHeaderKey(d.userHeader) == secretHeader:
		return usagef("--user-header %s is the header of --proxy-secret: name another", d.userHeader)
	case d.userHeader != "" && d.secretFile == "" && d.clientCA == "" && !unix:
		return usagef(`--user-header %s alone believes everybody who can reach the console: anybody can send the header.
  Say how the console knows the proxy, by one of these:
    --proxy-secret FILE    a secret that the proxy sends in the header %s
    --listen unix:PATH     a socket that only the proxy can open
    --tls-client-ca FILE   a certificate that only the proxy has, with --tls-cert and --tls-key`,
			d.userHeader, secretHeader)
	}
	return nil
}

// role returns the check of a request's user, which reads a header that the proxy has set.
func (d *door) role(ctx context.Context) (func(r *http.Request) (console.Role, string), error) {
	var want [sha256.Size]byte
	if d.secretFile != "" {
		secret, err := waitFor(ctx, func() ([]byte, error) { return readSecret(d.secretFile) })
		if err != nil {
			return nil, usagef("--proxy-secret: %w", err)
		}
		want = sha256.Sum256(secret)
	}
	return func(r *http.Request) (console.Role, string) {
		if d.secretFile != "" {
			got := sha256.Sum256([]byte(only(r, secretHeader)))
			if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
				return console.Nobody, ""
			}
		}
		name := only(r, d.userHeader)
		switch {
		case name == "":
			return console.Nobody, ""
		case slices.Contains(d.operators, name):
			return console.Operator, name
		}
		return console.Viewer, name
	}, nil
}

// only returns the value of a header that a request has exactly once, otherwise "". If a header is there twice, the
// proxy may not have removed the client's own.
func only(r *http.Request, header string) string {
	if all := r.Header.Values(header); len(all) == 1 {
		return all[0]
	}
	return ""
}

// readSecret reads the secret from a file that other users must not be able to read. It cuts line ends and blanks
// around the secret.
func readSecret(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if isOpen(info) {
		return nil, fmt.Errorf("%s can be read or written by all users of this machine: run chmod o= %s", path, path)
	}
	in, err := utf8Text(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	secret, err := io.ReadAll(io.LimitReader(in, 64<<10))
	if err != nil {
		return nil, err
	}
	if secret = bytes.TrimSpace(secret); len(secret) < minSecret {
		return nil, fmt.Errorf("%s has %d bytes: %d or more are wanted, as of openssl rand -hex 32", path,
			len(secret), minSecret)
	}
	return secret, nil
}

// open listens. Without TLS it listens only on this machine.
func (d *door) open(ctx context.Context, logger *slog.Logger) (net.Listener, error) {
	if path, ok := d.socket(); ok {
		mode := socketModes["0600"]
		if d.socketMode != "" {
			mode = socketModes[d.socketMode]
		}
		l, err := listenUnix(ctx, path, mode)
		if err != nil {
			return nil, usagef("--listen %s: %w", d.listen, err)
		}
		return l, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", d.listen)
	if err != nil {
		return nil, usagef("--listen %s: %w", d.listen, err)
	}
	if d.cert == "" {
		if addr, ok := l.Addr().(*net.TCPAddr); !ok || !addr.IP.IsLoopback() {
			err := usagef("--listen %s is for other machines: give --tls-cert and --tls-key", d.listen)
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
	config, err := waitFor(ctx, func() (*tls.Config, error) { return d.tls(logger) })
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return tls.NewListener(l, config), nil
}

// tls returns the configuration with the certificate, which is read again when it has changed. With --tls-client-ca
// each client must show a certificate of that authority.
func (d *door) tls(logger *slog.Logger) (*tls.Config, error) {
	cert, err := readCertificate(d.cert, d.key, logger)
	if err != nil {
		return nil, usagef("--tls-cert: %w", err)
	}
	config := &tls.Config{GetCertificate: cert.get, MinVersion: tls.VersionTLS12}
	if d.clientCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(d.clientCA)
	if err != nil {
		return nil, usagef("--tls-client-ca: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, usagef("--tls-client-ca: %s has no certificate: give a file in PEM form", d.clientCA)
	}
	return config, nil
}

// socketListener is a Unix socket. Close removes the socket's file, unless another socket has replaced it.
type socketListener struct {
	net.Listener
	folder *os.Root
	name   string // in the folder
	made   fs.FileInfo
}

func (l *socketListener) Close() error {
	err := l.Listener.Close()
	if now, e := l.folder.Lstat(l.name); e == nil && os.SameFile(now, l.made) {
		err = errors.Join(err, l.folder.Remove(l.name))
	}
	return errors.Join(err, l.folder.Close())
}

// listenUnix makes a socket with a mode. The move of the socket to its place also replaces the socket of a process that
// has ended. It is an error if path is another kind of file, or a socket on which a process listens or may listen.
func listenUnix(ctx context.Context, path string, mode fs.FileMode) (net.Listener, error) {
	path, _, err := trusted(path)
	if err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there, and is no socket", path)
	default:
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("another process listens on %s", path), c.Close())
		}
		// No other error says so: the process may lack room for a connection, or the socket be for another user.
		nobody := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
		if !nobody {
			return nil, fmt.Errorf("another process may listen on %s: %w", path, err)
		}
	}
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	l := &socketListener{folder: folder, name: filepath.Base(path)}
	if err := l.listen(filepath.Dir(path), mode); err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return l, nil
}

// listen makes the socket in a private folder, and moves it to its place when its mode is right. at is the path of
// l.folder.
func (l *socketListener) listen(at string, mode fs.FileMode) (err error) {
	aside := ".fdbfifo-" + rand.Text()
	if err := l.folder.Mkdir(aside, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.folder.RemoveAll(aside)) }()
	private, err := l.folder.OpenRoot(aside)
	if err != nil {
		return err
	}
	defer private.Close()
	// No other user can put a link into the private folder, so Chmod changes the socket and no other file. Another user
	// can replace the private folder by a folder of their own.
	info, err := private.Stat(".")
	if err != nil {
		return err
	}
	if info.Mode().Perm() != 0o700 || userOf(info) >= 0 && userOf(info) != os.Geteuid() {
		return fmt.Errorf("another user changes the folder %s: name a folder that only this user can change", at)
	}
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(at, aside, "s"), Net: "unix"})
	if err != nil {
		return err
	}
	unix.SetUnlinkOnClose(false)
	if err = private.Chmod("s", mode); err == nil {
		l.made, err = private.Lstat("s")
	}
	if err == nil {
		err = l.folder.Rename(filepath.Join(aside, "s"), l.name)
	}
	if err != nil {
		return errors.Join(err, unix.Close())
	}
	l.Listener = unix
	return nil
}

// hosts returns the names under which the console answers: its address, the names of this machine, and those of more. A
// Unix socket is reached only through the proxy, so it has only the names of more. nil means any name of this machine.
func (d *door) hosts(at net.Addr, more []string) []string {
	var hosts []string
	if _, port, err := net.SplitHostPort(at.String()); err == nil {
		hosts = append(hosts, at.String())
		for _, name := range []string{"localhost", "127.0.0.1", "[::1]"} {
			hosts = append(hosts, name+":"+port)
		}
	}
	for _, h := range more {
		hosts = append(hosts, strings.ToLower(h))
	}
	return hosts
}

// url returns the URL of the console, without a path. For a Unix socket it is the socket's path and a blank, after
// which a path may follow.
func (d *door) url(at net.Addr) string {
	_, unix := d.socket()
	switch {
	case unix:
		return d.listen + " "
	case d.cert != "":
		return "https://" + at.String()
	}
	return "http://" + at.String()
}
