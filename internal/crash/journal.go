package crash

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// The kinds of events. All but the last three are operations.
const (
	kindEnqueue    = "enqueue"
	kindResend     = "resend" // of messages that were enqueued before, under their dedup ids
	kindReceive    = "receive"
	kindAck        = "ack"
	kindAckReceive = "ack+receive"
	kindNack       = "nack"
	kindRedrive    = "redrive"
	kindPurge      = "purge"
	kindConfigure  = "configure"
	kindSweep      = "sweep"
	kindReady      = "ready"  // the child has opened the queue
	kindServes     = "serves" // the child has the database open, and serves it to others
	kindBroken     = "broken"
)

// event is a line of the journal. An operation has two: one before it, and one with Done after it.
type event struct {
	Op   int
	Kind string
	Done bool `json:",omitempty"`

	Process int   // its id
	Serves  bool  `json:",omitempty"` // the process had the file, and served it to others
	Micros  int64 // of the machine's clock
	Version int64 // of the process's newest commit

	Msgs   []message `json:",omitempty"` // enqueue
	Group  string    `json:",omitempty"` // of the claim; of a purge; of a redrive, "" = all
	Token  int64     `json:",omitempty"` // of the claim
	Items  []int     `json:",omitempty"` // of an ack those acked, of a nack those given back, the tried one first
	State  string    `json:",omitempty"` // set by an ack
	Effect bool      `json:",omitempty"` // an ack with a row of the worker's own for each item
	Reject bool      `json:",omitempty"`
	Free   bool      `json:",omitempty"` // a nack that counts no attempt
	Force  bool      `json:",omitempty"`
	Lease  int64     `json:",omitempty"` // ms, set by a configure

	// After it.
	Sent   []sent  `json:",omitempty"`
	Claims []claim `json:",omitempty"`
	Lost   bool    `json:",omitempty"` // the claim had ended: nothing was done
	Text   string  `json:",omitempty"` // broken: what the child has seen
}

// stamp notes the process and the time.
func (e *event) stamp() { e.Process, e.Micros = os.Getpid(), time.Now().UnixMicro() }

type message struct {
	N     int // names it, in its body too
	Group string
	Size  int // of the body
	Dedup string
}

type sent struct {
	ID        string
	Duplicate bool
}

type claim struct {
	Group string
	Token int64
	State string
	Items []delivered
}

type delivered struct {
	N  int
	ID string
}

// journal is written by the child.
type journal struct {
	mu   sync.Mutex
	out  io.Writer
	db   *versions
	own  func() bool // the process serves
	next int
}

// begin writes that an operation begins, and returns the line that done completes.
func (j *journal) begin(e event) event {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next++
	e.Op = j.next
	j.write(e)
	return e
}

func (j *journal) done(e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.write(event{Op: e.Op, Kind: e.Kind, Done: true, Sent: e.Sent, Claims: e.Claims, Lost: e.Lost, Text: e.Text})
}

// write panics if the parent is gone, because no process reads the journal then.
func (j *journal) write(e event) {
	e.stamp()
	e.Serves, e.Version = j.own(), j.db.newest.Load()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.out.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

// bodyOf is the body of message n. It begins with n, so that it can be told from any other, and is full of it.
func bodyOf(n, size int) []byte {
	word := fmt.Appendf(nil, "<%d>", n)
	return bytes.Repeat(word, size/len(word)+1)[:max(size, len(word))]
}

// numberIn is the number of the message that body, or a value that ends in one, is of.
func numberIn(body []byte) (n int, ok bool) {
	end := bytes.LastIndexByte(body, '>')
	if end < 0 {
		return 0, false
	}
	start := bytes.LastIndexByte(body[:end], '<')
	if start < 0 {
		return 0, false
	}
	_, err := fmt.Sscanf(string(body[start:end+1]), "<%d>", &n)
	return n, err == nil
}
