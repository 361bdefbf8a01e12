package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// handles says whether the servers of both versions take each other's receipt handles.
type handles bool

const (
	// taken: the database had queues before a server that signs handles came.
	taken handles = true
	// refused: a server that signs handles has made the first queue. Then all handles are signed, and the older
	// version knows no signatures. The answer is ReceiptHandleIsInvalid, and the message comes again when its
	// visibility timeout ends.
	refused handles = false
)

// object is a request, or an answer, of SQS.
type object = map[string]any

// server is a process that serves SQS.
type server struct {
	*process
	scene   *scene
	address string
}

// serveOn starts a server, and waits until it answers.
func (s *scene) serveOn(version string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	v := &server{scene: s, address: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, err
	}
	if v.process, err = s.start(version, "serve", "--sqs", v.address); err != nil {
		return nil, err
	}
	for {
		answer, err := http.Get("http://" + v.address + "/ready")
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return v, nil
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.ctx.Done():
			return nil, fmt.Errorf("the server does not answer: %w", errors.Join(s.ctx.Err(), err))
		}
	}
}

// call calls an operation. code is the error's, "" = none.
func (v *server) call(action string, request object) (answer object, code string, err error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, "", err
	}
	r, err := http.NewRequestWithContext(v.scene.ctx, http.MethodPost, "http://"+v.address+"/", bytes.NewReader(text))
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Content-Type", "application/x-amz-json-1.0")
	r.Header.Set("X-Amz-Target", "AmazonSQS."+action)
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer got.Body.Close()
	answer = object{}
	if err := json.NewDecoder(got.Body).Decode(&answer); err != nil && got.ContentLength != 0 {
		return nil, "", fmt.Errorf("%s: %w", action, err)
	}
	if kind, failed := answer["__type"].(string); failed {
		code = kind[strings.IndexByte(kind, '#')+1:]
	}
	return answer, code, nil
}

// must is call for an operation that succeeds.
func (v *server) must(action string, request object) (object, error) {
	answer, code, err := v.call(action, request)
	if err == nil && code != "" {
		err = answered(action, answer)
	}
	return answer, err
}

// url is the queue's URL, of which a server reads the last two parts.
func (v *server) url() string { return "http://" + v.address + "/000000000000/orders.fifo" }

func (v *server) send(numbers ...int) error {
	for _, n := range numbers {
		_, err := v.must("SendMessage", object{
			"QueueUrl": v.url(), "MessageBody": fmt.Sprint(n), "MessageGroupId": "A",
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// receive receives one message.
func (v *server) receive() (body, handle string, err error) {
	answer, err := v.must("ReceiveMessage", object{
		"QueueUrl": v.url(), "MaxNumberOfMessages": 1, "WaitTimeSeconds": 20, "VisibilityTimeout": 3,
	})
	if err != nil {
		return "", "", err
	}
	all, _ := answer["Messages"].([]any)
	if len(all) != 1 {
		return "", "", answered("ReceiveMessage", answer)
	}
	m := all[0].(object)
	return m["Body"].(string), m["ReceiptHandle"].(string), nil
}

func (v *server) delete(handle string) (code string, err error) {
	_, code, err = v.call("DeleteMessage", object{"QueueUrl": v.url(), "ReceiptHandle": handle})
	return code, err
}

// next receives the message of that number, and deletes it by a handle of the server's own.
func (v *server) next(number int) error {
	body, handle, err := v.receive()
	if err != nil {
		return err
	}
	if body != fmt.Sprint(number) {
		return answered(fmt.Sprintf("message %d is next", number), body)
	}
	code, err := v.delete(handle)
	if err == nil && code != "" {
		err = answered("DeleteMessage", code)
	}
	return err
}

// serve makes a FIFO queue by a server of the first version. A server of the second serves the queue together with the
// first, and then alone. The queue's delay is changed while messages wait.
func (s *scene) serve(from, to string, h handles) error {
	first, err := s.serveOn(from)
	if err != nil {
		return err
	}
	_, err = first.must("CreateQueue", object{"QueueName": "orders.fifo", "Attributes": object{
		"FifoQueue": "true", "ContentBasedDeduplication": "true", "DelaySeconds": "600",
	}})
	if err != nil {
		return err
	}
	if err := first.send(0, 1, 2, 3, 4, 5); err != nil {
		return err
	}
	second, err := s.serveOn(to)
	if err != nil {
		return err
	}
	// All wait for ten minutes, until the second version changes that.
	_, err = second.must("SetQueueAttributes",
		object{"QueueUrl": second.url(), "Attributes": object{"DelaySeconds": "0"}})
	if err != nil {
		return err
	}
	// The second version finds the group by the timer that the first has written.
	if err := errors.Join(second.next(0), first.next(1)); err != nil {
		return err
	}
	if err := second.send(0, 6); err != nil { // 0 is a duplicate
		return err
	}
	if err := s.exchange(first, second, h); err != nil {
		return err
	}
	if err := first.stop(); err != nil {
		return err
	}
	for n := 4; n <= 6; n++ {
		if err := second.next(n); err != nil {
			return err
		}
	}
	return second.stop()
}

// exchange deletes messages by the other server's handles: 2 of the first by the second, and 3 of the second by the
// first.
func (s *scene) exchange(first, second *server, h handles) error {
	for i, of := range [][2]*server{{first, second}, {second, first}} {
		number := i + 2
		body, handle, err := of[0].receive()
		if err != nil {
			return err
		}
		if body != fmt.Sprint(number) {
			return answered(fmt.Sprintf("message %d is next", number), body)
		}
		code, err := of[1].delete(handle)
		switch {
		case err != nil:
			return err
		case h == taken && code == "":
		case h == refused && code == "ReceiptHandleIsInvalid":
			if err := of[1].next(number); err != nil { // it comes again
				return err
			}
		default:
			return answered("a receipt handle at the other server", code)
		}
	}
	return nil
}
