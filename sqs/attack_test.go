package sqs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/smithy-go/aws-http-auth/credentials"
	"github.com/aws/smithy-go/aws-http-auth/sigv4"
	v4 "github.com/aws/smithy-go/aws-http-auth/v4"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
)

// pipes are a network in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9324} }

// from is the server's end of a connection from an address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", f.address)
	if err != nil {
		panic(err)
	}
	return a
}

// front is a server with keys that is served in a bubble.
type front struct {
	*env
	net   *pipes
	mu    sync.Mutex
	conns []net.Conn // the clients' ends; guarded by mu
	ended bool       // the test is over; guarded by mu
}

var frontKeys = map[string]Key{"AKID": {Secret: "secret"}}

// served serves connections connections at a time while a test runs.
func served(t *testing.T, o Options, connections int, test func(f *front)) {
	bubble(t, o, func(e *env) {
		f := &front{env: e, net: &pipes{conns: make(chan net.Conn)}}
		f.net.closed, f.net.close = context.WithCancel(context.Background())
		ctx, stop := context.WithCancel(e.Context())
		done := make(chan error, 1)
		go func() { done <- e.s.Serve(ctx, f.net, connections) }()
		defer func() {
			f.mu.Lock()
			f.ended = true
			for _, c := range f.conns {
				c.Close()
			}
			f.mu.Unlock()
			time.Sleep(time.Second) // until the server has closed its ends
			stop()
			require.NoError(e, <-done)
		}()
		test(f)
	})
}

// dial makes a connection from an address, which is closed when the test ends. It reports false if the server has not
// accepted the connection within a time.
func (f *front) dial(address string, within time.Duration) (net.Conn, bool) {
	client, server := net.Pipe()
	f.mu.Lock()
	f.conns = append(f.conns, client)
	ended := f.ended
	f.mu.Unlock()
	if ended {
		return nil, false
	}
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case f.net.conns <- from{server, address}:
		return client, true
	case <-late.C:
		return nil, false
	}
}

// write writes part of a request, as far as the server reads it.
func (f *front) write(c net.Conn, text string) {
	go func() { _, _ = io.WriteString(c, text) }()
	time.Sleep(time.Millisecond)
}

// ask sends a request on a connection of its own, and returns the status of the answer.
func (f *front) ask(address string, r *http.Request) int {
	f.Helper()
	c, ok := f.dial(address, time.Minute)
	require.True(f, ok, "accepted")
	return f.askBy(c, r)
}

func (f *front) askBy(c net.Conn, r *http.Request) int {
	f.Helper()
	go func() { _ = r.Write(c) }()
	answer, err := http.ReadResponse(bufio.NewReader(c), r)
	require.NoError(f, err)
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(f, err)
	return answer.StatusCode
}

// held is how much memory the bodies of requests have, in bytes.
func (f *front) held() int64 {
	f.s.memory.mu.Lock()
	defer f.s.memory.mu.Unlock()
	return f.s.memory.total
}

// taking sees to it that something is done within a time.
func (f *front) taking(most time.Duration, what string, do func()) {
	f.Helper()
	begun := time.Now()
	do()
	require.LessOrEqual(f, time.Since(begun), most, what)
}

type signs func(header string) bool

func (s signs) IsSigned(header string) bool { return s(header) }

// signAll signs a request as SDKs do.
func signAll(r *http.Request) *http.Request {
	return sign(r, func(header string) bool { return header != "authorization" })
}

// sign signs a request, with some of its headers.
func sign(r *http.Request, headers signs) *http.Request {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	hash := sha256.Sum256(body)
	err = sigv4.New().SignRequest(&sigv4.SignRequestInput{
		Request: r, PayloadHash: hash[:], Service: "sqs", Region: "us-east-1", Time: time.Now(),
		Credentials: credentials.Credentials{AccessKeyID: "AKID", SecretAccessKey: frontKeys["AKID"].Secret},
	}, func(o *v4.SignerOptions) { o.HeaderRules = headers })
	if err != nil {
		panic(err)
	}
	return r
}

// largeSend is a signed request that needs memory.
func largeSend() *http.Request {
	return signAll(post("SendMessage", object{"QueueUrl": "jobs", "MessageBody": strings.Repeat("b", 1<<20)}))
}

// head is the head of a POST with a body of so many bytes.
func head(length int, more ...string) string {
	return fmt.Sprintf("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n",
		jsonType, length, strings.Join(more, ""))
}

// forged are the headers of a request whose signature can be found to be wrong only when the body is there.
func forged(access string, at time.Time) string {
	date := at.UTC().Format("20060102T150405Z")
	return fmt.Sprintf("X-Amz-Target: AmazonSQS.SendMessage\r\nX-Amz-Date: %s\r\nAuthorization: %s "+
		"Credential=%s/%s/us-east-1/sqs/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-target, "+
		"Signature=%064d\r\n",
		date, algorithm, access, date[:8], 0)
}

// TestRefusedBeforeTheBody: what the header alone shows to be refused is refused before the body has come.
func TestRefusedBeforeTheBody(t *testing.T) {
	served(t, Options{Keys: frontKeys}, 0, func(f *front) {
		for name, more := range map[string]string{
			"no signature":  "",
			"unknown key":   forged("AKIX", time.Now()),
			"an hour ago":   forged("AKID", time.Now().Add(-time.Hour)),
			"other service": strings.Replace(forged("AKID", time.Now()), "/sqs/", "/s3/", 1),
			"no such thing": strings.Replace(forged("AKID", time.Now()), ".SendMessage", ".Send", 1),
		} {
			for _, length := range []int{1, 200_000, 8_000_000, 1 << 40} {
				f.taking(refusedIn+10*time.Millisecond, name, func() {
					c, _ := f.dial("192.0.2.1:1", time.Second)
					f.write(c, head(length, more))
					answer, err := http.ReadResponse(bufio.NewReader(c), nil)
					require.NoError(f, err, name)
					require.Contains(f, []int{http.StatusForbidden, http.StatusBadRequest}, answer.StatusCode, name)
				})
			}
		}
		require.Zero(f, f.held())
	})
}

// TestForgedBodiesGiveWay: the server can see only from the body that some requests are forged. No number of forged
// requests delays a signed request by more than a second. Forged requests from one address do not delay requests from
// other addresses at all. A small signed request does not wait.
func TestForgedBodiesGiveWay(t *testing.T) {
	served(t, Options{Keys: frontKeys}, 0, func(f *front) {
		require.Equal(f, http.StatusOK, f.ask("192.0.2.9:1", signAll(post("CreateQueue", object{"QueueName": "jobs"}))))
		small := func() *http.Request {
			return signAll(post("SendMessage", object{"QueueUrl": "jobs", "MessageBody": "b"}))
		}
		attack := func(address string) {
			for i := range 64 {
				c, _ := f.dial(fmt.Sprintf("%s:%d", address, i+1), time.Second)
				f.write(c, head(maxBody, forged("AKID", time.Now()))+strings.Repeat("b", 1000*i))
			}
		}
		attack("192.0.2.1")
		f.taking(10*time.Millisecond, "from another address", func() {
			require.Equal(f, http.StatusOK, f.ask("192.0.2.2:1", largeSend()))
		})
		f.taking(10*time.Millisecond, "small", func() {
			require.Equal(f, http.StatusOK, f.ask("192.0.2.1:100", small()))
		})
		f.taking(patience+100*time.Millisecond, "from the same address", func() {
			require.Equal(f, http.StatusOK, f.ask("192.0.2.1:101", largeSend()))
		})
		attack("192.0.2.3")
		attack("[2001:db8::1]")
		attack("[2001:db8::2]")
		f.taking(patience+100*time.Millisecond, "from many addresses", func() {
			require.Equal(f, http.StatusOK, f.ask("192.0.2.2:2", largeSend()))
		})
		require.LessOrEqual(f, f.held(), int64(bodyMemory))
		time.Sleep(bodyTimeout + time.Second)
		require.Zero(f, f.held())
		f.s.memory.mu.Lock()
		defer f.s.memory.mu.Unlock()
		require.Empty(f, f.s.memory.taken)
		require.Empty(f, f.s.memory.waiting)
	})
}

// TestIdleConnectionsGiveWay: connections without a signed request delay a signed request by at most a second, however
// many they are and whatever they send. A connection with a signed request in work is not closed for others.
func TestIdleConnectionsGiveWay(t *testing.T) {
	const most, strangers = 16, 1024
	served(t, Options{Keys: frontKeys}, most, func(f *front) {
		require.Equal(f, http.StatusOK, f.ask("192.0.2.9:1", signAll(post("CreateQueue", object{"QueueName": "jobs"}))))
		polled := make(chan int)
		go func() {
			wait := object{"QueueUrl": "jobs", "WaitTimeSeconds": 20}
			polled <- f.ask("192.0.2.9:2", signAll(post("ReceiveMessage", wait)))
		}()
		kept, _ := f.dial("192.0.2.9:3", time.Second)
		require.Equal(f, http.StatusOK, f.askBy(kept, signAll(post("ListQueues", object{}))))
		time.Sleep(5 * time.Second)
		ctx, stop := context.WithCancel(f.Context())
		defer stop()
		var accepted atomic.Int64
		for i := range strangers {
			go func() {
				for n := 0; ctx.Err() == nil; n++ {
					c, ok := f.dial(fmt.Sprintf("192.0.%d.%d:%d", 3+i/250, i%250+1, n+1), time.Minute)
					if !ok {
						continue
					}
					accepted.Add(1)
					switch i % 4 {
					case 0: // nothing at all
					case 1: // a header without an end
						_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: localhost\r\nX: ")
						for err == nil {
							time.Sleep(300 * time.Millisecond)
							_, err = io.WriteString(c, "x")
						}
					case 2: // requests that are refused at once, again and again
						for answers := bufio.NewReader(c); ; {
							if _, err := io.WriteString(c, head(0)); err != nil {
								break
							}
							if answer, err := http.ReadResponse(answers, nil); err != nil || answer.StatusCode != 403 {
								break
							}
							time.Sleep(300 * time.Millisecond)
						}
					case 3: // a body that does not come
						f.write(c, head(1000, forged("AKID", time.Now())))
					}
					_, _ = io.Copy(io.Discard, c)
				}
			}()
		}
		for i := range 5 {
			time.Sleep(1234 * time.Millisecond)
			f.taking(patience+100*time.Millisecond, "signed", func() {
				status := f.ask(fmt.Sprintf("192.0.2.2:%d", i+1), signAll(post("ListQueues", object{})))
				require.Equal(f, http.StatusOK, status)
			})
		}
		require.Greater(f, int(accepted.Load()), strangers)
		require.Equal(f, http.StatusOK, f.askBy(kept, signAll(post("ListQueues", object{}))), "was known")
		select {
		case status := <-polled:
			require.Equal(f, http.StatusOK, status)
		case <-time.After(10 * time.Second):
			require.Fail(f, "the connection of the long poll was closed")
		}
	})
}

// TestBodiesMustCome: the server refuses a body that comes too slowly, also if no other request waits for the memory.
// It accepts a body that comes as fast as a line of 512 kbit/s. The deadline of the body does not end the long poll
// that the request asks for.
func TestBodiesMustCome(t *testing.T) {
	served(t, Options{Keys: frontKeys}, 0, func(f *front) {
		require.Equal(f, http.StatusOK, f.ask("192.0.2.9:1", signAll(post("CreateQueue", object{"QueueName": "jobs"}))))
		slowly := func(r *http.Request, rate int) (int, time.Duration) {
			var text bytes.Buffer
			require.NoError(f, r.Write(&text))
			c, _ := f.dial("192.0.2.1:1", time.Second)
			begun := time.Now()
			go func() {
				for err := error(nil); err == nil && text.Len() > 0; {
					_, err = c.Write(text.Next(rate / 10))
					time.Sleep(100 * time.Millisecond)
				}
			}()
			answer, err := http.ReadResponse(bufio.NewReader(c), r)
			require.NoError(f, err)
			return answer.StatusCode, time.Since(begun)
		}
		for _, length := range []int{6000, 60_000, 600_000} {
			send := post("SendMessage", object{"QueueUrl": "jobs", "MessageBody": strings.Repeat("b", length)})
			status, took := slowly(signAll(send), 500)
			require.Equal(f, http.StatusRequestTimeout, status)
			require.InDelta(f, bodyGrace.Seconds(), took.Seconds(), 2)
		}
		status, took := slowly(largeSend(), 64<<10)
		require.Equal(f, http.StatusOK, status)
		require.Greater(f, took, 15*time.Second)
		require.Equal(f, http.StatusOK, f.ask("192.0.2.1:1", signAll(post("PurgeQueue", object{"QueueUrl": "jobs"}))))
		time.Sleep(2 * time.Second)
		text := `{"QueueUrl":"jobs","WaitTimeSeconds":20,"Ignored":"` + strings.Repeat("x", 100_000) + `"}`
		poll := post("ReceiveMessage", json.RawMessage(text))
		status, took = slowly(signAll(poll), 64<<10)
		require.Equal(f, http.StatusOK, status)
		require.Greater(f, took, 20*time.Second)
	})
}

// TestMemoryUntilTheAnswer: a request has the memory of its body until it is answered, and then it is free.
func TestMemoryUntilTheAnswer(t *testing.T) {
	served(t, Options{Keys: frontKeys}, 0, func(f *front) {
		require.Equal(f, http.StatusOK, f.ask("192.0.2.9:1", signAll(post("CreateQueue", object{"QueueName": "jobs"}))))
		var polls sync.WaitGroup
		const length = 200_000
		ignored := strings.Repeat("x", length)
		poll := object{"QueueUrl": "jobs", "WaitTimeSeconds": 3, "Ignored": ignored}
		begun := time.Now()
		for i := range 100 {
			polls.Go(func() {
				f.ask(fmt.Sprintf("192.0.2.%d:1", 1+i%2), signAll(post("ReceiveMessage", poll)))
			})
		}
		time.Sleep(time.Second)
		require.Greater(f, f.held(), int64(99*length))
		polls.Wait()
		require.Equal(f, 3*time.Second, time.Since(begun).Round(time.Second))
		require.Zero(f, f.held())
		// Of more than there is memory for those behind wait for those before them.
		begun = time.Now()
		for i := range 200 {
			polls.Go(func() {
				f.ask(fmt.Sprintf("192.0.2.%d:1", 1+i%2), signAll(post("ReceiveMessage", poll)))
			})
		}
		time.Sleep(time.Second)
		require.LessOrEqual(f, f.held(), int64(bodyMemory))
		polls.Wait()
		require.Equal(f, 6*time.Second, time.Since(begun).Round(time.Second))
		require.Zero(f, f.held())
	})
}

// TestSignedHeaders: each header that says which operation a request is must be signed, or agree with the signed
// headers.
func TestSignedHeaders(t *testing.T) {
	bubble(t, Options{Keys: frontKeys}, func(e *env) {
		all := func(header string) bool { return header != "authorization" }
		but := func(out string) signs { return func(header string) bool { return all(header) && header != out } }
		send := func(body string) *http.Request {
			return post("SendMessage", object{"QueueUrl": "jobs", "MessageBody": body})
		}
		status, _, body := e.do(sign(post("CreateQueue", object{"QueueName": "jobs"}), all))
		require.Equal(e, http.StatusOK, status, body)
		status, _, body = e.do(sign(send("b"), but("content-type")))
		require.Equal(e, http.StatusOK, status, "the SDKs for JavaScript 2 and PHP do not sign it: %s", body)
		const evil = "&Action=PurgeQueue&QueueUrl=jobs&"
		for name, r := range map[string]*http.Request{
			"target": sign(send("b"), but("x-amz-target")),
			"date":   sign(send("b"), but("x-amz-date")),
			"host":   sign(send("b"), but("host")),
			"added": func() *http.Request {
				r := post("GetQueueUrl", object{"QueueName": "jobs", "QueueUrl": "jobs"})
				r.Header.Del("X-Amz-Target")
				sign(r, all).Header.Set("X-Amz-Target", targetPrefix+"PurgeQueue")
				return r
			}(),
			"removed": func() *http.Request {
				r := sign(send("b"), all)
				r.Header.Del("X-Amz-Target")
				return r
			}(),
			"twice": func() *http.Request {
				r := sign(send("b"), all)
				r.Header["X-Amz-Target"] = []string{targetPrefix + "PurgeQueue", targetPrefix + "SendMessage"}
				return r
			}(),
			"JSON becomes a form": func() *http.Request {
				r := sign(send(evil), but("content-type"))
				r.Header.Set("Content-Type", formType)
				return r
			}(),
			"a form is ignored": func() *http.Request {
				r := post("", "")
				r.Header.Del("X-Amz-Target")
				r.URL.RawQuery = "Action=PurgeQueue&QueueUrl=jobs"
				r.Header.Set("Content-Type", formType)
				sign(r, but("content-type")).Header.Set("Content-Type", "text/plain")
				return r
			}(),
		} {
			status, _, body := e.do(r)
			require.Contains(e, []int{http.StatusForbidden, http.StatusBadRequest}, status, "%s: %s", name, body)
		}
		answer := e.asked(sign(post("ReceiveMessage", object{"QueueUrl": "jobs"}), all))
		require.Len(e, answer["Messages"], 1, "not purged")
	})
}

// TestSignedHeaderTwice: if a request has a signed header twice, the signature is of both values.
func TestSignedHeaderTwice(t *testing.T) {
	bubble(t, Options{Keys: frontKeys}, func(e *env) {
		for _, name := range []string{"Date", "X-Other"} {
			for added, want := range map[string]int{"": http.StatusOK, "three": http.StatusForbidden} {
				r := post("ListQueues", object{})
				r.Header[name] = []string{"one", "two"}
				signAll(r)
				if added != "" {
					r.Header.Add(name, added)
				}
				status, _, body := e.do(r)
				require.Equal(e, want, status, "%s, %q: %s", name, added, body)
			}
		}
	})
}

// asked is the answer to a request, which must succeed.
func (e *env) asked(r *http.Request) (answer object) {
	e.Helper()
	status, _, body := e.do(r)
	require.Equal(e, http.StatusOK, status, body)
	require.NoError(e, json.Unmarshal([]byte(body), &answer))
	return answer
}

// TestBoundedRequests: no list of a request is without a bound, in either protocol, and only what sends messages is
// large.
func TestBoundedRequests(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		e.send(url, "", "b")
		list := func(n, length int) []string {
			all := make([]string, n)
			for i := range all {
				all[i] = fmt.Sprintf("%0*d", length, i)
			}
			return all
		}
		for _, member := range []string{"MessageAttributeNames", "AttributeNames", "MessageSystemAttributeNames"} {
			_, text := e.refused("ReceiveMessage", object{"QueueUrl": url, member: list(101, 3)})
			require.Contains(e, text, "at most 100 names", member)
			_, text = e.refused("ReceiveMessage", object{"QueueUrl": url, member: list(1, 257)})
			require.Contains(e, text, "at most 256 bytes", member)
			_, text = e.refused("ReceiveMessage", object{"QueueUrl": url, member: list(2000, 1)})
			require.Contains(e, text, "more than 2000 values", member)
		}
		_, text := e.refused("GetQueueAttributes", object{"QueueUrl": url, "AttributeNames": list(101, 3)})
		require.Contains(e, text, "at most 100 names")
		require.Equal(e, "b", bodies(e.receive(url, "MessageAttributeNames", list(100, 256))))

		for action, member := range map[string]string{
			"AddPermission": "AWSAccountIds", "UntagQueue": "TagKeys", "SendMessageBatch": "Entries",
			"DeleteMessageBatch": "Entries", "ChangeMessageVisibilityBatch": "Entries",
		} {
			_, text := e.refused(action, object{"QueueUrl": url, member: make([]object, 2000)})
			require.Contains(e, text, "more than 2000 values", action)
		}
		var form strings.Builder
		for i := range 2001 {
			fmt.Fprintf(&form, "&MessageAttributeName.%d=a", i+1)
		}
		status, body := e.query("Action=ReceiveMessage&QueueUrl=jobs" + form.String())
		require.Equal(e, http.StatusBadRequest, status)
		require.Contains(e, body, "more than 2000 values")
		some := strings.Join(strings.SplitAfter(form.String(), "=a")[:150], "")
		status, body = e.query("Action=ReceiveMessage&QueueUrl=jobs" + some)
		require.Equal(e, http.StatusBadRequest, status)
		require.Contains(e, body, "at most 100 names")

		// Brackets inside texts do not count.
		e.call("SendMessage", object{"QueueUrl": url, "MessageBody": strings.Repeat(`[{,"\\`, 10_000)})
		attributes := object{}
		for i := range 10 {
			attributes[fmt.Sprintf("a%d", i)] = object{"DataType": "String", "StringValue": "v"}
		}
		entries := make([]object, 10)
		for i := range entries {
			entries[i] = object{
				"Id": fmt.Sprint(i), "MessageBody": "b", "MessageAttributes": attributes, "DelaySeconds": 0,
				"MessageSystemAttributes": object{traceHeader: object{"DataType": "String", "StringValue": "t"}},
			}
		}
		full := e.call("SendMessageBatch", object{"QueueUrl": url, "Entries": entries})
		require.Len(e, full["Successful"], 10)

		long := strings.Repeat(" ", maxOther)
		status, _, _ = e.do(post("ReceiveMessage", object{"QueueUrl": url, "Ignored": long}))
		require.Equal(e, http.StatusRequestEntityTooLarge, status)
		status, _ = e.query("Action=ReceiveMessage&QueueUrl=jobs&Ignored=" + strings.Repeat("x", maxOther))
		require.Equal(e, http.StatusRequestEntityTooLarge, status)
	})
}

// attacked plays attack against a server, and holds that the server's live memory stays small until all connections of
// the attack have ended. Garbage does not count: on a busy machine there may be more of it than live memory. So the
// memory is what two collections in a row have marked: one alone also counts all that was allocated while it marked.
func attacked(t *testing.T, attack func(e *env, address string, all *sync.WaitGroup)) *env {
	db := embedded.OpenMemory(embedded.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	s, done := NewServer(db, Options{}), make(chan error, 1)
	e := &env{T: t, db: db, s: s}
	go func() { done <- s.Serve(ctx, l, 0) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-done); require.NoError(t, db.Close()) })
	live := func() int64 {
		runtime.GC()
		marked := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(marked)
		return int64(marked[0].Value.Uint64())
	}
	// A collection also counts bytes allocated while it marks. With this figure they are few.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	var all sync.WaitGroup
	before := live()
	last := before
	attack(e, l.Addr().String(), &all)
	most, ended := int64(0), make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-time.After(5 * time.Millisecond):
		}
		now := live()
		most, last = max(most, min(last, now)), now
	}
	const million = 1_000_000
	t.Logf("the live memory grew by %d MB", (most-before)/million)
	require.Less(t, most-before, int64(130*million))
	return e
}

// TestMemoryOfAttacks: the server's memory stays small under the largest possible requests. They are long polls with a
// million names, batches of a million entries, forms of a million parameters, and bodies that do not end.
func TestMemoryOfAttacks(t *testing.T) {
	const million = 1_000_000
	target := "X-Amz-Target: AmazonSQS."
	names := `{"QueueUrl":"jobs","WaitTimeSeconds":2,"MessageAttributeNames":[` +
		strings.Repeat(`"a",`, 2*million) + `"a"]}`
	entries := `{"QueueUrl":"jobs","Entries":[` + strings.Repeat(`{},`, 2*million) + `{}]}`
	form := "Action=ReceiveMessage&QueueUrl=jobs&WaitTimeSeconds=2" + strings.Repeat("&a=", 2*million)
	var attacks [][]byte
	for _, text := range []string{
		head(len(names), target+"ReceiveMessage\r\n") + names,
		head(len(entries), target+"SendMessageBatch\r\n") + entries,
		strings.Replace(head(len(form)), jsonType, formType, 1) + form,
		head(maxBody, target+"SendMessage\r\n") + strings.Repeat("x", maxBody-1),
	} {
		attacks = append(attacks, []byte(text))
	}
	attacked(t, func(e *env, address string, all *sync.WaitGroup) {
		e.create("jobs")
		for i := range 12 {
			c, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			all.Go(func() {
				_, _ = c.Write(attacks[i%len(attacks)]) // the server may close the connection before
				_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
}

// TestMemoryOfSlowReaders: clients that read large answers slowly, or not at all, cost a bounded amount of memory
// however many they are. A request of another client is answered.
func TestMemoryOfSlowReaders(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures memory, and the race detector adds its own")
	}
	for name, want := range map[string]struct{ kind, text string }{
		"json":  {jsonType, `{"QueueUrl":"jobs","MaxNumberOfMessages":10,"VisibilityTimeout":0}`},
		"query": {formType, "Action=ReceiveMessage&QueueUrl=jobs&MaxNumberOfMessages=10&VisibilityTimeout=0"},
	} {
		t.Run(name, func(t *testing.T) {
			e := attacked(t, func(e *env, address string, all *sync.WaitGroup) {
				url, clients := e.create("jobs"), 240
				e.create("empty")
				for range 10 {
					e.send(url, "", strings.Repeat("b", 1<<20))
				}
				dial := func() net.Conn {
					c, err := net.Dial("tcp", address)
					require.NoError(t, err)
					require.NoError(t, c.(*net.TCPConn).SetReadBuffer(4096))
					t.Cleanup(func() { _ = c.Close() })
					return c
				}
				poll := `{"QueueUrl":"empty","WaitTimeSeconds":20}`
				for range clients / 2 {
					_, err := io.WriteString(dial(), head(len(poll), "X-Amz-Target: AmazonSQS.ReceiveMessage\r\n")+poll)
					require.NoError(t, err)
				}
				request := head(len(want.text), "X-Amz-Target: AmazonSQS.ReceiveMessage\r\n") + want.text
				request = strings.Replace(request, jsonType, want.kind, 1)
				for range clients {
					c := dial()
					all.Go(func() {
						for { // until the answer is large, of which it reads nothing more
							_, _ = io.WriteString(c, request)
							answer, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
							if err != nil || answer.StatusCode != http.StatusOK || answer.ContentLength < 0 {
								return
							}
							_, _ = io.Copy(io.Discard, answer.Body)
						}
					})
				}
			})
			status, _, body := e.do(post("ReceiveMessage", object{"QueueUrl": "jobs", "VisibilityTimeout": 0}))
			require.Equal(t, http.StatusOK, status, body[:min(len(body), 200)])
		})
	}
}

// TestSlowReadersGiveWay: clients that do not read their large answers delay a large answer to another client by at
// most a second. A client that reads gets its answer whole.
func TestSlowReadersGiveWay(t *testing.T) {
	served(t, Options{Keys: frontKeys}, 0, func(f *front) {
		require.Equal(f, http.StatusOK, f.ask("192.0.2.9:1", signAll(post("CreateQueue", object{"QueueName": "jobs"}))))
		for i := range 10 {
			require.Equal(f, http.StatusOK, f.ask(fmt.Sprintf("192.0.2.9:%d", i+2), largeSend()))
		}
		receive := func() *http.Request {
			want := object{"QueueUrl": "jobs", "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
			return signAll(post("ReceiveMessage", want))
		}
		var slow []net.Conn
		for i := range 80 {
			c, ok := f.dial(fmt.Sprintf("192.0.2.%d:1", 10+i), time.Minute)
			require.True(f, ok)
			require.NoError(f, receive().Write(c))
			slow = append(slow, c)
			time.Sleep(10 * time.Millisecond)
		}
		f.s.answers.mu.Lock()
		total := f.s.answers.total
		f.s.answers.mu.Unlock()
		require.Greater(f, total, int64(answerMemory-making*leastAnswer))
		f.taking(patience+100*time.Millisecond, "from another address", func() {
			require.Equal(f, http.StatusOK, f.ask("192.0.2.8:1", receive()))
		})
		answer, err := http.ReadResponse(bufio.NewReader(slow[0]), nil)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		require.Error(f, err, "the first has given way")
	})
}

// TestLongPollsHaveNoMemory: a long poll has no memory for its answer while it waits, and gives back the memory of its
// answer.
func TestLongPollsHaveNoMemory(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		var polls sync.WaitGroup
		var got atomic.Int64
		for i := range 100 {
			url := e.create(fmt.Sprint("jobs", i))
			polls.Go(func() { got.Add(int64(len(e.receive(url, "WaitTimeSeconds", 20)))) })
		}
		time.Sleep(time.Second)
		total := func() int64 {
			e.s.answers.mu.Lock()
			defer e.s.answers.mu.Unlock()
			return e.s.answers.total
		}
		require.Zero(e, total())
		e.send("jobs0", "", strings.Repeat("b", 1<<20))
		polls.Wait()
		require.EqualValues(e, 1, got.Load())
		require.Zero(e, total())
		require.Empty(e, e.s.answers.taken)
	})
}

// TestNoMemoryIsNoReceive: a message for whose answer there is no memory was not received. It does not go to the dead
// letter queue.
func TestNoMemoryIsNoReceive(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		var poll sync.WaitGroup
		poll.Go(func() {
			code, _ := e.refused("ReceiveMessage", object{"QueueUrl": url, "WaitTimeSeconds": 20})
			require.Equal(e, "RequestThrottled", code)
		})
		time.Sleep(time.Second)
		var all []*share
		for _, address := range []string{"a", "b"} {
			taken, err := e.s.answers.take(e.Context(), &share{address: address, size: answerMemory / 2, whole: true})
			require.NoError(e, err)
			all = append(all, taken)
		}
		e.send(url, "a", "a1")
		poll.Wait()
		for _, taken := range all {
			taken.release()
		}
		got := e.receive(url)
		require.Equal(e, "a1", bodies(got))
		require.Equal(e, "1", counts(got))
		require.Empty(e, e.receive(dead))
	})
}

// TestPollWithoutMemoryHoldsUpNone: a long poll for whose answer there is no memory holds up no long poll of another
// client. When there is memory the poll goes on.
func TestPollWithoutMemoryHoldsUpNone(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		poll := func(address string) string {
			r := post("ReceiveMessage", object{"QueueUrl": url, "WaitTimeSeconds": 20})
			r.RemoteAddr = address + ":1"
			_, _, body := e.do(r)
			return body
		}
		taken, err := e.s.answers.take(e.Context(), &share{address: "192.0.2.1", size: answerMemory / 2, whole: true})
		require.NoError(e, err)
		var waiting sync.WaitGroup
		waiting.Go(func() { require.Contains(e, poll("192.0.2.1"), "second") })
		synctest.Wait()
		e.send(url, "", "first")
		begun := time.Now()
		require.Contains(e, poll("192.0.2.2"), "first")
		require.Less(e, time.Since(begun), time.Second)
		taken.release()
		synctest.Wait()
		e.send(url, "", "second")
		waiting.Wait()
		require.Less(e, time.Since(begun), 2*time.Second)
	})
}

// TestBatchWithoutMemory: a batch is answered by its results also if there is no memory for the answer. A client that
// is told to try again would send the messages twice.
func TestBatchWithoutMemory(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("orders.fifo")
		var entries []object
		for i := range maxEntries {
			group := "g"
			if i%2 == 0 {
				group = strings.Repeat("no id ", 1000)
			}
			body := fmt.Sprint(i)
			entries = append(entries, object{"Id": body, "MessageBody": body, "MessageGroupId": group})
		}
		batch := post("SendMessageBatch", object{"QueueUrl": url, "Entries": entries})
		all, err := e.s.answers.take(e.Context(), &share{
			address: addressOf(batch), size: answerMemory / 2, deadline: func(time.Time) {}, whole: true,
		})
		require.NoError(e, err)
		status, _, body := e.do(batch)
		all.release()
		require.Equal(e, http.StatusOK, status, body)
		require.Greater(e, len(body), freeBody)
		require.Equal(e, "1 3 5 7 9", bodies(e.receive(url)))
	})
}
