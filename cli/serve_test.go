package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/metrics"
)

// TestServeIsRefused: without keys the server listens only on this machine. It reports a mistake before it listens.
func TestServeIsRefused(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("AKID\n"), 0o600))
	for want, args := range map[string][]string{
		`--sqs is "": HOST:PORT is wanted`:              {},
		`--sqs is "9324"`:                               {"--sqs", "9324"},
		"give --keys, or listen on 127.0.0.1":           {"--sqs", "0.0.0.0:0"},
		"no such file":                                  {"--sqs", "0.0.0.0:0", "--keys", keys + "x"},
		"line 1: want ACCESS-KEY SECRET-KEY":            {"--sqs", "0.0.0.0:0", "--keys", keys},
		"--tls-cert and --tls-key need each other":      {"--sqs", "127.0.0.1:0", "--tls-cert", "x"},
		`--url is "example.com": http://HOST`:           {"--sqs", "127.0.0.1:0", "--url", "example.com"},
		`--url is "ftp://x": http://HOST`:               {"--sqs", "127.0.0.1:0", "--url", "ftp://x"},
		`--account is "12": 12 digits`:                  {"--sqs", "127.0.0.1:0", "--account", "12"},
		"--connections is 0":                            {"--sqs", "127.0.0.1:0", "--connections", "0"},
		`--visibility is "both": claim or item`:         {"--sqs", "127.0.0.1:0", "--visibility", "both"},
		"--tls-cert: stat x: no such file or directory": {"--sqs", "127.0.0.1:0", "--tls-cert", "x", "--tls-key", "x"},
	} {
		args = append([]string{"serve", "--engine", "disk:" + t.TempDir()}, args...)
		var stderr strings.Builder
		err := Run(t.Context(), args, nil, io.Discard, &stderr)
		require.Equal(t, ExitUsage, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), want)
	}
}

// TestServeWarnsOfOpenFiles: serve says which file of secrets all users of the machine can read.
func TestServeWarnsOfOpenFiles(t *testing.T) {
	for mode, open := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		folder := t.TempDir()
		args := []string{"serve", "--engine", "memory", "--sqs", "127.0.0.1:0", "--queues", folder + "/none"}
		for _, flag := range []string{"keys", "tls-key"} {
			path := filepath.Join(folder, flag)
			require.NoError(t, os.WriteFile(path, []byte("AKID secret\n"), 0o600))
			require.NoError(t, os.Chmod(path, mode))
			args = append(args, "--"+flag, path)
		}
		var stderr strings.Builder
		require.Error(t, Run(t.Context(), append(args, "--tls-cert", "x"), nil, io.Discard, &stderr))
		for _, flag := range []string{"--keys: ", "--tls-key: "} {
			require.Equal(t, open, strings.Contains(stderr.String(), flag+folder), stderr.String())
		}
	}
}

// TestServe: it listens, says where, tells whether it is well, and ends with the context. The messages of its FIFO
// queues have visibility timeouts of their own, as in AWS, unless the operator says otherwise.
func TestServe(t *testing.T) {
	for want, more := range map[string][]string{"item": nil, "claim": {"--visibility", "claim"}} {
		t.Run(want, func(t *testing.T) { testServe(t, want, more...) })
	}
}

func testServe(t *testing.T, visibility string, more ...string) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stderr, notices := io.Pipe()
	done := make(chan error, 1)
	go func() {
		args := append([]string{"serve", "--engine", "memory", "--sqs", "localhost:0"}, more...)
		done <- Run(ctx, args, nil, io.Discard, notices)
		notices.Close()
	}()
	text, err := readUntil(stderr, "\nfdbfifo: serving SQS at ", "\n")
	require.NoError(t, err)
	for _, path := range []string{"/health", "/ready", "/?Action=ListQueues"} {
		get(t, text+path)
	}
	made, err := http.Post(text, "application/x-www-form-urlencoded", strings.NewReader(
		"Action=CreateQueue&QueueName=a.fifo&Attribute.1.Name=FifoQueue&Attribute.1.Value=true"))
	require.NoError(t, err)
	require.NoError(t, made.Body.Close())
	require.Equal(t, http.StatusOK, made.StatusCode)
	require.Contains(t, get(t, text+"/0/a.fifo?Action=GetQueueAttributes&AttributeName.1=fdbfifo.Visibility"),
		"<Value>"+visibility+"</Value>")
	stop()
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	require.NoError(t, <-done)
}

// TestServeTLS: the URLs of queues are those by which the client has come, over TLS, too.
func TestServeTLS(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	a, b := selfSigned(t, "localhost")
	require.NoError(t, os.WriteFile(cert, a, 0o600))
	require.NoError(t, os.WriteFile(key, b, 0o600))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stderr, notices := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, []string{
			"serve", "--engine", "memory", "--sqs", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key,
		}, nil, io.Discard, notices)
		notices.Close()
	}()
	address, err := readUntil(stderr, "\nfdbfifo: serving SQS at ", "\n")
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	made, err := client.Post(address, "application/x-www-form-urlencoded", strings.NewReader(
		"Action=CreateQueue&QueueName=jobs"))
	require.NoError(t, err)
	body, err := io.ReadAll(made.Body)
	require.NoError(t, err)
	require.NoError(t, made.Body.Close())
	require.Contains(t, string(body), "<QueueUrl>"+address+"/000000000000/jobs</QueueUrl>")
	client.CloseIdleConnections()
	stop()
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	require.NoError(t, <-done)
}

// readUntil reads up to end, and returns what stands between begin and that.
func readUntil(r io.Reader, begin, end string) (string, error) {
	var all strings.Builder
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, one); err != nil {
			return all.String(), err
		}
		all.Write(one)
		if _, rest, ok := strings.Cut(all.String(), begin); ok && strings.HasSuffix(rest, end) {
			return strings.TrimSuffix(rest, end), nil
		}
	}
}

// TestServeDeclaredQueues: the queues of the file exist when the server listens. The file may declare a dead letter
// queue after the queue that names it. A second start with a changed file changes the queues. The server also serves
// the metrics of all queues.
func TestServeDeclaredQueues(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "queues.json")
	start := func(text string) (address string, stop func()) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		ctx, cancel := context.WithCancel(t.Context())
		stderr, notices := io.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, []string{
				"serve", "--engine", "disk:" + filepath.Join(folder, "data"), "--sqs", "127.0.0.1:0", "--queues", file,
				"--metrics", "127.0.0.1:0",
			}, nil, io.Discard, notices)
			notices.Close()
		}()
		metrics, err := readUntil(stderr, "fdbfifo: metrics: ", "\n")
		require.NoError(t, err, metrics)
		address, err = readUntil(stderr, "fdbfifo: serving SQS at ", "\n")
		require.NoError(t, err)
		require.Contains(t, get(t, metrics), `queue="orders.fifo"`)
		for _, url := range []string{metrics, address + "/?Action=ListQueues", address + "/health"} {
			require.Equal(t, http.StatusMisdirectedRequest, rebound(t, url), url)
		}
		return address, func() {
			cancel()
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			require.NoError(t, <-done)
		}
	}
	attributes := func(address string) string {
		return get(t, address+"/?Action=GetQueueAttributes&QueueUrl=orders.fifo&AttributeName.1=All")
	}
	const declared = `[
		{"name": "orders.fifo", "attributes": {"VisibilityTimeout": %TIME, "ContentBasedDeduplication": true,
			"RedrivePolicy": {"deadLetterTargetArn": "dead.fifo", "maxReceiveCount": 5}}, "tags": {"team": "shop"}},
		{"name": "dead.fifo"}]`
	address, stop := start(strings.ReplaceAll(declared, "%TIME", "60"))
	got := attributes(address)
	require.Contains(t, got, "<Name>VisibilityTimeout</Name><Value>60</Value>")
	require.Contains(t, got, "arn:aws:sqs:us-east-1:000000000000:dead.fifo")
	require.Contains(t, got, "<Name>ContentBasedDeduplication</Name><Value>true</Value>")
	require.Contains(t, get(t, address+"/?Action=ListQueueTags&QueueUrl=orders.fifo"), "shop")
	stop()
	address, stop = start(strings.ReplaceAll(declared, "%TIME", "7"))
	require.Contains(t, attributes(address), "<Name>VisibilityTimeout</Name><Value>7</Value>")
	stop()

	for want, text := range map[string]string{
		"a list of queues is wanted":   `{"name": "x"}`,
		`unknown field "nmae"`:         `[{"nmae": "x"}]`,
		"text behind the list":         `[{"name": "x"}] 7`,
		`queue 2, "x": it was there`:   `[{"name": "x"}, {"name": "x"}]`,
		`queue 1, "a b"`:               `[{"name": "a b"}]`,
		`queue "x": InvalidAttributeN`: `[{"name": "x", "attributes": {"Odd": 1}}]`,
		"Dead letter target does not": `[{"name": "x", "attributes": {
			"RedrivePolicy": {"deadLetterTargetArn": "y", "maxReceiveCount": 1}}}]`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		var stderr strings.Builder
		err := Run(t.Context(), []string{"serve", "--engine", "memory", "--sqs", "127.0.0.1:0", "--queues", file}, nil,
			io.Discard, &stderr)
		require.Equal(t, ExitUsage, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), want)
	}
}

// TestServeDeclaresOnAFailingDatabase: that the database fails is not what the file of --queues is blamed for.
func TestServeDeclaresOnAFailingDatabase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queues.json")
	require.NoError(t, os.WriteFile(file, []byte(`[{"name": "x"}]`), 0o600))
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	open := func(context.Context, EngineOptions) (kv.DB, error) { return &mortal{DB: db, dead: true}, nil }
	app := &App{Engines: map[string]OpenFunc{"disk": open}}
	var stderr strings.Builder
	args := []string{"serve", "--sqs", "127.0.0.1:0", "--queues", file}
	err := app.Run(t.Context(), args, nil, io.Discard, &stderr)
	require.ErrorIs(t, err, errDead)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), `queue "x"`)
	require.NotContains(t, stderr.String(), "--queues")
}

// rebound returns the status of a request of a web page whose host name was made to resolve to this machine.
func rebound(t *testing.T, url string) int {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	r.Host = "evil.example:" + r.URL.Port()
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer.StatusCode
}

func get(t *testing.T, url string) string {
	answer, err := http.Get(url)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode, "%s: %s", url, body)
	return string(body)
}

// TestCertificateIsReadAgain: a certificate that has been renewed is used without a restart; while the files are half
// written, the one before stays.
func TestCertificateIsReadAgain(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	at := time.Now().Add(-time.Hour)
	write := func(name string) {
		a, b := selfSigned(t, name)
		at = at.Add(time.Minute)
		for path, text := range map[string][]byte{cert: a, key: b} {
			require.NoError(t, os.WriteFile(path, text, 0o600))
			require.NoError(t, os.Chtimes(path, at, at))
		}
	}
	write("one")
	var log strings.Builder
	c, err := readCertificate(cert, key, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	name := func() string {
		c.looked = time.Time{} // as if the pause were over
		pair, err := c.get(nil)
		require.NoError(t, err)
		return pair.Leaf.Subject.CommonName
	}
	require.Equal(t, "one", name())
	write("two")
	require.Equal(t, "two", name())
	require.Empty(t, log.String())
	whole, err := os.ReadFile(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, whole[:len(whole)/2], 0o600))
	require.Equal(t, "two", name())
	require.Contains(t, log.String(), "the one before stays in use")
	require.NoError(t, os.WriteFile(key, whole, 0o600))
	write("three")
	require.Equal(t, "three", name())
}

// selfSigned makes a certificate and its key.
func selfSigned(t *testing.T, name string) (cert, key []byte) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// TestMetricsOfAllQueues: the metrics have every queue that can be opened. For a queue that cannot, for example because
// a newer version has configured it, fdbfifo_exporter_up is 0, and stderr has the reason once, until it is repaired.
func TestMetricsOfAllQueues(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	set := func(key, value []byte) (before []byte) {
		t.Helper()
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
			before, err = tx.Get(key).Wait(t.Context())
			tx.Set(key, value)
			return err
		})
		require.NoError(t, err)
		return before
	}
	row := func(queue, field string) []byte {
		return append(prefix(), tuple.Tuple{queue, "meta", field}.Pack()...)
	}
	for _, name := range []string{"broken", "jobs", "newer", "orders"} {
		q, err := layer.Create(t.Context(), db, prefix(), name, layer.Options{})
		require.NoError(t, err)
		require.NoError(t, q.Close(t.Context()))
	}
	config := set(row("broken", "config"), []byte("spoilt"))
	format := set(row("newer", "format"), tuple.Tuple{int64(2 + 1)}.Pack())

	var stderr strings.Builder
	now := time.Now()
	s := &session{app: &App{Now: func() time.Time { return now }}, stderr: &stderr}
	all := &allQueues{s: s, db: db, e: metrics.New(metrics.Options{}), open: map[string]*layer.Queue{}}
	defer all.close(t.Context())
	shown := func() (up map[string]string, text string) {
		t.Helper()
		now = now.Add(2 * metrics.DefaultEvery)
		w := httptest.NewRecorder()
		all.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		text, up = w.Body.String(), map[string]string{}
		require.Equal(t, 200, w.Code, text)
		for line := range strings.SplitSeq(text, "\n") {
			if name, value, ok := strings.Cut(line, `"} `); ok && strings.HasPrefix(name, "fdbfifo_exporter_up{") {
				up[name[strings.LastIndexByte(name, '"')+1:]] = value
			}
		}
		return up, text
	}
	for range 3 {
		up, text := shown()
		require.Equal(t, map[string]string{"broken": "0", "jobs": "1", "newer": "0", "orders": "1"}, up)
		require.Contains(t, text, `fdbfifo_queue_messages{queue="orders"}`)
	}
	_, text := shown()
	require.Contains(t, text, `fdbfifo_exporter_errors_total{queue="newer"} 4`)
	require.Equal(t, 1, strings.Count(stderr.String(), `open queue "broken"`), stderr.String())
	require.Equal(t, 1, strings.Count(stderr.String(), `open queue "newer"`), stderr.String())

	set(row("broken", "config"), config)
	set(row("newer", "format"), format)
	up, text := shown()
	require.Equal(t, map[string]string{"broken": "1", "jobs": "1", "newer": "1", "orders": "1"}, up)
	require.Contains(t, text, `fdbfifo_exporter_errors_total{queue="newer"} 4`)
}

// TestMetricsOfARecreatedQueue: a queue that was dropped and created again between two scrapes has figures again.
func TestMetricsOfARecreatedQueue(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	now := time.Now()
	clock := func() time.Time { return now }
	s := &session{app: &App{Now: clock}, stderr: io.Discard}
	all := &allQueues{s: s, db: db, e: metrics.New(metrics.Options{Now: clock}), open: map[string]*layer.Queue{}}
	defer all.close(t.Context())
	scrape := func() string {
		now = now.Add(2 * metrics.DefaultEvery)
		w := httptest.NewRecorder()
		all.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		return w.Body.String()
	}
	create := func() {
		q, err := layer.Create(t.Context(), db, s.prefix(), "orders", layer.Options{})
		require.NoError(t, err)
		require.NoError(t, q.Close(t.Context()))
	}
	create()
	require.Contains(t, scrape(), `fdbfifo_exporter_up{queue="orders"} 1`)
	require.NoError(t, layer.Drop(t.Context(), db, s.prefix(), "orders", layer.DropOptions{}))
	create()
	require.Contains(t, scrape(), `fdbfifo_exporter_up{queue="orders"} 0`)
	require.Contains(t, scrape(), `fdbfifo_exporter_up{queue="orders"} 1`)
}

// stops is an engine that no longer answers once stopped is set.
type stops struct {
	kv.DB
	stopped *atomic.Bool
}

func (d stops) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if d.stopped.Load() {
		return behind{d.DB, 0}.Begin(o)
	}
	return d.DB.Begin(o)
}

// TestMetricsWithoutAnAnswer: while the database does not answer, a scrape is answered within 10 s, after which
// Prometheus gives up. It has an fdbfifo_exporter_up of 0 for each queue that was known before, as the alerts need it.
func TestMetricsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer func() { require.NoError(t, db.Close()) }()
		const n = 100
		for i := range n {
			q, err := layer.Create(t.Context(), db, prefix(), fmt.Sprint("q", i), layer.Options{})
			require.NoError(t, err)
			require.NoError(t, q.Close(t.Context()))
		}
		var stopped atomic.Bool
		s := &session{app: &App{Now: time.Now}, stderr: io.Discard}
		exporter := metrics.New(metrics.Options{})
		all := &allQueues{s: s, db: stops{db, &stopped}, e: exporter, open: map[string]*layer.Queue{}}
		scrape := func() string {
			time.Sleep(2 * metrics.DefaultEvery)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			w, begun := httptest.NewRecorder(), time.Now()
			all.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/metrics", nil))
			require.Less(t, time.Since(begun), 10*time.Second)
			return w.Body.String()
		}
		ups := func(value string) int {
			up := regexp.MustCompile(`fdbfifo_exporter_up\{queue="q\d+"\} ` + value + "\n")
			return len(up.FindAllString(scrape(), -1))
		}
		require.Equal(t, n, ups("1"))
		stopped.Store(true)
		for range 3 {
			require.Equal(t, n, ups("0"))
		}
		stopped.Store(false)
		require.Equal(t, n, ups("1"))
		all.close(t.Context())
	})
}
