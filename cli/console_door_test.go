package cli

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// consoleAt is a console that runs until the test ends, and how it says that it is reached.
func consoleAt(t *testing.T, h *harness, args ...string) (where string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := h.app().Run(ctx, append([]string{"console"}, args...), strings.NewReader(""), w, io.Discard)
		ended <- err
		w.CloseWithError(err)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	where, ok := strings.CutPrefix(strings.TrimSpace(line), "console: ")
	require.True(t, ok, line)
	return where
}

// caller sends requests to a console with headers, which may stand in a request several times.
type caller struct {
	t      *testing.T
	client *http.Client
	base   string
}

func (c caller) get(path string, headers ...string) (status int, body string) {
	c.t.Helper()
	return c.ask("GET", path, nil, headers...)
}

func (c caller) ask(method, path string, form url.Values, headers ...string) (status int, body string) {
	c.t.Helper()
	r, err := http.NewRequest(method, c.base+path, strings.NewReader(form.Encode()))
	require.NoError(c.t, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	answer, err := c.client.Do(r)
	require.NoError(c.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(c.t, err)
	return answer.StatusCode, string(text)
}

// newCaller is a caller whose connections end with the test, before the console does.
func newCaller(t *testing.T, base string, transport *http.Transport) caller {
	t.Cleanup(transport.CloseIdleConnections)
	return caller{t, &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, base}
}

// TestUserHeaderNeedsAProxy: the console does not start with --user-header if it has no way to recognize the proxy,
// because any client could send the header. The error names the ways.
func TestUserHeaderNeedsAProxy(t *testing.T) {
	h := newHarness(t)
	var stderr strings.Builder
	args := []string{"console", "--listen", "127.0.0.1:0", "--user-header", "X-User", "--operators", "ann"}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := h.app().Run(ctx, args, strings.NewReader(""), io.Discard, &stderr)
	require.Equal(t, ExitUsage, ExitCode(err), "%v", err)
	for _, way := range []string{"--proxy-secret", "--listen unix:PATH", "--tls-client-ca"} {
		require.Contains(t, stderr.String(), way)
	}
}

// secretOf is a file with a secret for the proxy.
func secretOf(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

// TestProxySecret: only a request with the proxy's secret is believed; one that has a header twice is refused.
func TestProxySecret(t *testing.T) {
	const secret = "0123456789abcdef0123456789abcdef"
	h := newHarness(t)
	base := consoleAt(t, h, "--listen", "127.0.0.1:0", "--user-header", "X-User", "--operators", "ann",
		"--proxy-secret", secretOf(t, secret+"\n", 0o640))
	c := newCaller(t, strings.TrimSuffix(base, "/"), new(http.Transport))
	for _, x := range []struct {
		headers []string
		want    int
	}{
		{[]string{"X-User", "ann", secretHeader, secret}, http.StatusOK},
		{[]string{"X-User", "bob", secretHeader, secret}, http.StatusOK},
		{[]string{"X-User", "ann"}, http.StatusUnauthorized},
		{[]string{secretHeader, secret}, http.StatusUnauthorized},
		{[]string{"X-User", "ann", secretHeader, ""}, http.StatusUnauthorized},
		{[]string{"X-User", "ann", secretHeader, secret[1:]}, http.StatusUnauthorized},
		{[]string{"X-User", "ann", secretHeader, secret + "0"}, http.StatusUnauthorized},
		{[]string{"X-User", "bob", "X-User", "ann", secretHeader, secret}, http.StatusUnauthorized},
		{[]string{"X-User", "ann", "X-User", "ann", secretHeader, secret}, http.StatusUnauthorized},
		{[]string{"X-User", "ann", secretHeader, secret, secretHeader, "x"}, http.StatusUnauthorized},
		{nil, http.StatusUnauthorized},
	} {
		status, body := c.get("/", x.headers...)
		require.Equal(t, x.want, status, "%v", x.headers)
		require.NotContains(t, body, secret)
		if status == http.StatusUnauthorized {
			require.Contains(t, body, "come in by the proxy")
		}
	}
	form := url.Values{"q": {"default"}, "verb": {"pause-queue"}}
	status, _ := c.ask("POST", "/do", form, "X-User", "bob", secretHeader, secret)
	require.Equal(t, http.StatusForbidden, status)
	status, _ = c.ask("POST", "/do", form, "X-User", "ann")
	require.Equal(t, http.StatusUnauthorized, status)
}

// TestConsoleDoorRefuses: a secret that is none, and flags that do not fit, end the command before it listens.
func TestConsoleDoorRefuses(t *testing.T) {
	good := secretOf(t, strings.Repeat("s", minSecret), 0o600)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	user := []string{"--listen", "127.0.0.1:0", "--user-header", "X-User"}
	for _, args := range [][]string{
		append(user, "--proxy-secret", secretOf(t, strings.Repeat("s", minSecret), 0o644)),
		append(user, "--proxy-secret", secretOf(t, strings.Repeat("s", minSecret-1)+"\n\n", 0o600)),
		append(user, "--proxy-secret", filepath.Join(t.TempDir(), "none")),
		{"--listen", "127.0.0.1:0", "--user-header", secretHeader, "--proxy-secret", good},
		{"--listen", "127.0.0.1:0", "--proxy-secret", good},
		{"--listen", "127.0.0.1:0", "--socket-mode", "0600"},
		{"--listen", "127.0.0.1:0", "--idle", "-1s"},
		{"--listen", "127.0.0.1:0", "--tls-client-ca", good},
		{"--listen", "unix:" + filepath.Join(t.TempDir(), "s"), "--socket-mode", "0666"},
		{"--listen", "unix:" + filepath.Join(t.TempDir(), "s"), "--tls-cert", "x", "--tls-key", "x"},
		{"--listen", "unix:" + file},
		{"--listen", "unix:" + filepath.Join(t.TempDir(), "no", "folder")},
	} {
		h := newHarness(t)
		args = append([]string{"console"}, args...)
		err := h.app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard)
		require.Equal(t, ExitUsage, ExitCode(err), "%v: %v", args, err)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Empty(t, text, "a file is left as it is")
}

// TestConsoleOnASocket: the socket has its mode from its first moment, is for the proxy alone, replaces what a dead
// process has left but no living one's, and is gone after the end.
func TestConsoleOnASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())

	t.Run("served", func(t *testing.T) {
		h := newHarness(t)
		where := consoleAt(t, h, "--listen", "unix:"+path, "--socket-mode", "0660", "--user-header", "X-User")
		require.Equal(t, "unix:"+path+" /", where)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o660), info.Mode().Perm())
		c := newCaller(t, "http://localhost", &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			},
		})
		status, _ := c.get("/", "X-User", "ann")
		require.Equal(t, http.StatusOK, status)
		status, _ = c.get("/", "X-User", "ann", "X-User", "bob")
		require.Equal(t, http.StatusUnauthorized, status)
		c.base = "http://evil.example"
		status, _ = c.get("/", "X-User", "ann")
		require.Equal(t, http.StatusMisdirectedRequest, status)

		args := []string{"console", "--listen", "unix:" + path}
		err = newHarness(t).app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard)
		require.ErrorContains(t, err, "another process listens")
	})
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestSocketOfAnother: a console that ends does not take away the socket of one that has been started since.
func TestSocketOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.sock")
	old, err := listenUnix(t.Context(), path, 0o600)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	next, err := listenUnix(t.Context(), path, 0o600)
	require.NoError(t, err)
	require.NoError(t, old.Close())
	require.FileExists(t, path)
	require.NoError(t, next.Close())
	require.NoFileExists(t, path)
}

// signed is a certificate of an authority, in files.
func signed(t *testing.T, name string, of *tls.Certificate) (cert, key string, made *tls.Certificate) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	want := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: of == nil,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := want, private
	if of != nil {
		parent, signer = of.Leaf, of.PrivateKey.(*ecdsa.PrivateKey)
	}
	der, err := x509.CreateCertificate(rand.Reader, want, parent, &private.PublicKey, signer)
	require.NoError(t, err)
	secret, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	return cert, key, &pair
}

// TestClientCertificate: with --tls-client-ca the console accepts no request without a certificate of that authority.
func TestClientCertificate(t *testing.T) {
	ca, _, authority := signed(t, "authority", nil)
	cert, key, _ := signed(t, "console", authority)
	_, _, proxy := signed(t, "proxy", authority)
	_, _, other := signed(t, "stranger", nil)
	base := consoleAt(t, newHarness(t), "--listen", "127.0.0.1:0", "--user-header", "X-User", "--operators", "ann",
		"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca)
	roots := x509.NewCertPool()
	roots.AddCert(authority.Leaf)
	for _, x := range []struct {
		certs []tls.Certificate
		in    bool
	}{{[]tls.Certificate{*proxy}, true}, {nil, false}, {[]tls.Certificate{*other}, false}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: x.certs}}
		c := newCaller(t, base, transport)
		r, err := http.NewRequest("GET", base, nil)
		require.NoError(t, err)
		r.Header.Set("X-User", "ann")
		answer, err := c.client.Do(r)
		if !x.in {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode)
	}
}

// TestConsoleCertificateIsReadAgain: the console, too, uses a renewed certificate without a restart.
func TestConsoleCertificateIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := door{cert: filepath.Join(t.TempDir(), "cert"), key: filepath.Join(t.TempDir(), "key")}
		write := func(name string) {
			cert, key := selfSigned(t, name)
			for path, text := range map[string][]byte{d.cert: cert, d.key: key} {
				require.NoError(t, os.WriteFile(path, text, 0o600))
				require.NoError(t, os.Chtimes(path, time.Now(), time.Now()))
			}
		}
		write("one")
		config, err := d.tls(slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		time.Sleep(2 * certificateEvery)
		write("two")
		pair, err := config.GetCertificate(nil)
		require.NoError(t, err)
		require.Equal(t, "two", pair.Leaf.Subject.CommonName)
	})
}
