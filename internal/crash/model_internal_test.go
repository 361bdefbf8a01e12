package crash

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// script feeds a model with lines of a journal.
type script struct {
	t *testing.T
	m *model
}

func newScript(t *testing.T) *script { return &script{t, newModel(true)} }

func textOf(group string, index int64) string {
	return layer.ID{Group: group, Index: index, Random: uuid.UUID{byte(index)}}.String()
}

// enqueued: messages 1 to n of group "a", acknowledged, with indexes of these numbers.
func (s *script) enqueued(n int) {
	e := event{Op: 1, Kind: kindEnqueue}
	for i := range n {
		e.Msgs = append(e.Msgs, message{N: i + 1, Group: "a", Size: 30})
	}
	s.m.see(e)
	e.Done = true
	for i := range n {
		e.Sent = append(e.Sent, sent{ID: textOf("a", int64(i+1))})
	}
	s.m.see(e)
}

func (s *script) both(e, done event) {
	s.m.see(e)
	done.Op, done.Kind, done.Done = e.Op, e.Kind, true
	s.m.see(done)
}

func (s *script) received(op int, token int64, ns ...int) {
	c := claim{Group: "a", Token: token}
	for _, n := range ns {
		c.Items = append(c.Items, delivered{n, textOf("a", int64(n))})
	}
	s.both(event{Op: op, Kind: kindReceive}, event{Claims: []claim{c}})
}

// TestModelFinds: an answer that a child must never get is a problem, and an answer that it may get is none. Receives
// begin at time 0.
func TestModelFinds(t *testing.T) {
	for _, c := range []struct {
		what   string
		breaks bool
		tell   func(s *script)
	}{
		{"in order", false, func(s *script) { s.received(2, 1, 1, 2); s.received(3, 2, 1, 2, 3) }},
		{"passed over", true, func(s *script) { s.received(2, 1, 2) }},
		{"out of order", true, func(s *script) { s.received(2, 1, 2, 1) }},
		{"never enqueued", true, func(s *script) { s.received(2, 1, 9) }},
		{"token not greater", true, func(s *script) { s.received(2, 5, 1); s.received(3, 5, 1) }},
		{"acked, and the next", false, func(s *script) {
			s.received(2, 1, 1)
			s.both(event{Op: 3, Kind: kindAck, Group: "a", Items: []int{1}}, event{})
			s.received(4, 2, 2)
		}},
		{"delivered after its ack", true, func(s *script) {
			s.received(2, 1, 1)
			s.both(event{Op: 3, Kind: kindAck, Group: "a", Items: []int{1}}, event{})
			s.received(4, 2, 1)
		}},
		{"delivered after an ack that was lost", false, func(s *script) {
			s.received(2, 1, 1)
			ack := event{Op: 3, Kind: kindAck, Group: "a", Token: 1, Items: []int{1}}
			s.both(ack, event{Lost: true, Micros: 31_000_000})
			s.received(4, 2, 1)
		}},
		{"an ack lost before the end of its lease", true, func(s *script) {
			s.received(2, 1, 1)
			ack := event{Op: 3, Kind: kindAck, Group: "a", Token: 1, Items: []int{1}}
			s.both(ack, event{Lost: true, Micros: 29_000_000})
		}},
		{"a nack lost before the end of its lease", true, func(s *script) {
			s.received(2, 1, 1)
			nack := event{Op: 3, Kind: kindNack, Group: "a", Token: 1, Items: []int{1}}
			s.both(nack, event{Lost: true, Micros: 29_000_000})
		}},
		{"delivered though it was a dead letter", true, func(s *script) {
			s.received(2, 1, 1)
			s.both(event{Op: 3, Kind: kindNack, Group: "a", Items: []int{1}, Reject: true}, event{})
			s.received(4, 2, 1, 2)
		}},
		{"delivered after a redrive", false, func(s *script) {
			s.received(2, 1, 1)
			s.both(event{Op: 3, Kind: kindNack, Group: "a", Items: []int{1}, Reject: true}, event{})
			s.both(event{Op: 4, Kind: kindRedrive}, event{})
			s.received(5, 2, 1, 2)
		}},
		{"passed over after a redrive", true, func(s *script) {
			s.received(2, 1, 1)
			s.both(event{Op: 3, Kind: kindNack, Group: "a", Items: []int{1}, Reject: true}, event{})
			s.both(event{Op: 4, Kind: kindRedrive}, event{})
			s.received(5, 2, 2)
		}},
		{"purged before its enqueue was told", false, func(s *script) {
			purge := event{Op: 2, Kind: kindPurge, Group: "a"}
			enqueue := event{Op: 3, Kind: kindEnqueue, Msgs: []message{{N: 4, Group: "a", Size: 30}}}
			s.m.see(purge)
			s.m.see(enqueue)
			purge.Done = true
			s.m.see(purge)
			enqueue.Done, enqueue.Sent = true, []sent{{ID: textOf("a", 4)}}
			s.m.see(enqueue)
			again := event{Op: 4, Kind: kindEnqueue, Msgs: []message{{N: 5, Group: "a", Size: 30}}}
			s.both(again, event{Sent: []sent{{ID: textOf("a", 5)}}})
			s.received(5, 1, 5)
		}},
		{"enqueued before what was there", true, func(s *script) {
			s.both(event{Op: 2, Kind: kindEnqueue, Msgs: []message{{N: 4, Group: "a", Size: 30}}},
				event{Sent: []sent{{ID: textOf("a", 2)}}})
		}},
		{"taken for new twice", true, func(s *script) {
			s.both(event{Op: 2, Kind: kindResend, Msgs: []message{{N: 1, Group: "a", Size: 30}}},
				event{Sent: []sent{{ID: textOf("a", 1)}}})
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newScript(t)
			s.enqueued(3)
			require.Empty(t, s.m.problems)
			c.tell(s)
			require.Equal(t, c.breaks, len(s.m.problems) > 0, "%v", s.m.problems)
		})
	}
}

// TestHalfOfAnOperationIsFound: an operation that was not acknowledged is there whole or not at all.
func TestHalfOfAnOperationIsFound(t *testing.T) {
	msgs := []message{{N: 4, Group: "a", Size: 30}, {N: 5, Group: "b", Size: 30}}
	at := func(p place, msgs ...message) map[int][]found {
		out := make(map[int][]found)
		for _, m := range msgs {
			out[m.N] = []found{{p, layer.ID{Group: m.Group, Index: int64(m.N)}, bodyOf(m.N, m.Size)}}
		}
		return out
	}
	for _, c := range []struct {
		what   string
		breaks bool
		e      event
		left   map[int][]found
	}{
		{"an enqueue, whole", false, event{Kind: kindEnqueue, Msgs: msgs}, at(waiting, msgs...)},
		{"no enqueue", false, event{Kind: kindEnqueue, Msgs: msgs}, nil},
		{"half an enqueue", true, event{Kind: kindEnqueue, Msgs: msgs}, at(waiting, msgs[0])},
		{"an enqueue that became a dead letter", true, event{Kind: kindEnqueue, Msgs: msgs}, at(dead, msgs...)},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := newModel(true)
			c.e.Op = 1
			m.see(c.e)
			m.compare(&dump{items: c.left}, layer.Config{Lease: leaseBase}, make(map[string]*outcomes))
			require.Equal(t, c.breaks, len(m.problems) > 0, "%v", m.problems)
		})
	}
}

// TestLostAckTakesBackOnlyItsOwn: a forced purge ends a worker's claim, and another worker finishes the messages that
// the purge has left. When the first worker is told that its claim was lost, the messages stay finished, with the
// effect that the other worker wrote. The same holds if the first worker is killed before it is told.
func TestLostAckTakesBackOnlyItsOwn(t *testing.T) {
	type ack struct{ effect, open bool }
	for _, c := range []struct {
		what           string
		second, first  ack // of the worker that finishes 2 and 3, and of the one that lost them
		nacks, waiting bool
		effects        map[int]bool
		problem        string
	}{
		{what: "lost"},
		{what: "both with an effect", second: ack{effect: true}, first: ack{effect: true},
			effects: map[int]bool{2: true, 3: true}},
		{what: "the second with an effect, the first killed", second: ack{effect: true}, first: ack{open: true},
			effects: map[int]bool{2: true, 3: true}},
		{what: "the second with an effect, which is lost",
			second: ack{effect: true}, first: ack{effect: true, open: true},
			problem: "acked with an effect, which is not there"},
		{what: "the first with an effect", first: ack{effect: true}},
		{what: "the first with an effect, and killed", first: ack{effect: true, open: true}},
		{what: "the first has written an effect all the same", first: ack{effect: true}, effects: map[int]bool{2: true},
			problem: "nobody has written one"},
		{what: "under way both, with effects", second: ack{effect: true, open: true}, first: ack{effect: true},
			effects: map[int]bool{2: true, 3: true}},
		{what: "under way the second, without", second: ack{open: true}, first: ack{effect: true, open: true}},
		{what: "a nack, lost", nacks: true},
		{what: "a nack, killed", first: ack{open: true}, nacks: true},
		{what: "3 is not finished, the first killed", first: ack{open: true}, waiting: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newScript(t)
			purge := event{Op: 2, Kind: kindPurge, Group: "a", Force: true}
			s.m.see(purge)
			s.enqueued(3)
			s.received(3, 1, 1, 2, 3)
			one := event{Op: 4, Kind: kindAck, Group: "a", Items: []int{1}}
			s.m.see(one)
			purge.Done = true
			s.m.see(purge) // it has removed 1, and ended the claim for that
			s.received(5, 2, 2, 3)
			second := event{Op: 6, Kind: kindAck, Group: "a", Items: []int{2, 3}, Effect: c.second.effect}
			if c.waiting {
				second.Items = []int{2}
			}
			s.m.see(second)
			if !c.second.open {
				s.m.see(event{Op: 6, Kind: kindAck, Done: true})
			}
			first := event{Op: 7, Kind: kindAck, Group: "a", Items: []int{2, 3}, Effect: c.first.effect}
			if c.nacks {
				first.Kind, first.Reject = kindNack, true
			}
			s.m.see(first)
			if !c.first.open {
				s.m.see(event{Op: 7, Kind: first.Kind, Done: true, Lost: true})
			}
			one.Done, one.Lost = true, true
			s.m.see(one)
			left := &dump{items: make(map[int][]found), effects: c.effects}
			for n := 2; n <= 3; n++ {
				at := finished
				if n == 3 && c.waiting {
					at = waiting
				}
				id := layer.ID{Group: "a", Index: int64(n), Random: uuid.UUID{byte(n)}}
				left.items[n] = []found{{at, id, bodyOf(n, 30)}}
			}
			s.m.compare(left, layer.Config{Lease: leaseBase}, make(map[string]*outcomes))
			if c.problem == "" {
				require.Empty(t, s.m.problems)
			} else {
				require.Contains(t, fmt.Sprint(s.m.problems), c.problem)
			}
		})
	}
}
