package linear_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/linear"
	"fdbfifo/layer"
)

// TestHistories: the checker accepts what the law allows and rejects what it forbids. A line of a history is
//
//	CALL-RETURN CLIENT VERB WORDS... -> RESULT
//
// In a queue with facets @TEMPLATE follows a verb, the facets in brackets follow a message, and "to TEMPLATE" follows
// the messages of an advance. In a queue with unordered consumers @# follows an unordered verb, and @#MESSAGE a verb of
// the claim of one message. @> follows a receive in turn. A return of ? is an unknown outcome. ! follows a return if a
// commit was first of unknown outcome. All clocks show the stamp. The order of the messages is that of their names.
func TestHistories(t *testing.T) {
	datadriven.Walk(t, "testdata/histories", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			law := linear.Law{Empty: true, Loose: d.HasArg("loose")}
			var ops []linear.Operation
			for line := range strings.Lines(d.Input) {
				ops = append(ops, parse(t, line))
			}
			group := strings.Repeat("\x00", layer.MaxGroupSize) // the pictures must have room for it in their names
			histories := map[string][]linear.Operation{group: ops}
			r, err := linear.Check(law, histories, linear.CheckOptions{Dir: t.TempDir()})
			require.NoError(t, err)
			require.Empty(t, r.Undecided)
			if len(r.Violations) == 0 {
				return "linearizable\n"
			}
			picture, err := os.ReadFile(r.Violations[0].Picture)
			require.NoError(t, err)
			require.Contains(t, string(picture), "<html")
			text := r.Violations[0].Text
			last := text[strings.LastIndex(text, "\n")+1:]
			_, stuck, _ := strings.Cut(last, " client ")
			_, stuck, _ = strings.Cut(stuck, ": ")
			return "NOT linearizable: " + stuck + "\nafter: " + stateOf(text)
		})
	})
}

// stateOf is the line of the text that describes the group.
func stateOf(text string) string {
	_, rest, _ := strings.Cut(text, "then the group is: ")
	line, _, _ := strings.Cut(rest, "\n")
	return line + "\n"
}

func number(t *testing.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	require.NoError(t, err)
	return n
}

// message has an index that orders it as its name does.
func message(name string) linear.Message {
	index := int64(0)
	for i := range 4 {
		index <<= 8
		if i < len(name) {
			index += int64(name[i])
		}
	}
	return linear.Message{ID: layer.ID{Group: "g", Index: index, Random: uuid.UUID{1}}, Body: name}
}

func messages(names []string) (all []linear.Message) {
	for _, name := range names {
		name, facets, faceted := strings.Cut(strings.TrimSuffix(name, ")"), "(")
		m := message(name)
		if faceted {
			m.Facets, _ = layer.ParseTemplate(facets)
		}
		all = append(all, m)
	}
	return all
}

func template(t *testing.T, text string) layer.Template {
	where, err := layer.ParseTemplate(text)
	require.NoError(t, err)
	return where
}

func parse(t *testing.T, line string) linear.Operation {
	call, result, hasResult := strings.Cut(strings.TrimSpace(line), " -> ")
	words := strings.Fields(call)
	from, to, _ := strings.Cut(words[0], "-")
	o := linear.Operation{Kind: linear.Kind(words[2]), Outcome: linear.Done}
	o.Call = number(t, from)
	o.Begin = o.Call
	o.Client = int(words[1][0])
	if to == "?" {
		o.Outcome = linear.Unknown
	} else {
		to, o.Doubted = strings.CutSuffix(to, "!")
		o.Return = number(t, to)
		o.End = o.Return
	}
	args := words[3:]
	if len(args) > 0 && strings.HasPrefix(args[0], "@") {
		if args[0] == "@>" {
			o.InTurn = true
		} else if alone, is := strings.CutPrefix(args[0], "@#"); !is {
			o.Where = template(t, args[0][1:])
		} else if o.Unordered = o.Kind == linear.Receive || o.Kind == linear.Take; alone != "" {
			o.Hold = message(alone).ID
		}
		args = args[1:]
	}
	if n := len(args); n > 1 && args[n-2] == "to" {
		o.Next, args = template(t, args[n-1]), args[:n-2]
	}
	next := func() string {
		require.NotEmpty(t, args, line)
		s := args[0]
		args = args[1:]
		return s
	}
	switch o.Kind {
	case linear.Ack, linear.Nack, linear.Extend, linear.Advance:
		o.Token = number(t, next())
	}
	switch o.Kind {
	case linear.Drop, linear.Put, linear.Move:
		if n := len(args); n > 4 && args[n-2] == "from" {
			o.Token, args = number(t, args[n-1]), args[:n-2]
		}
		if n := len(args); n > 2 && args[n-2] == "by" {
			o.Force, args = true, args[:n-2]
		}
		o.Messages = messages(args)
	case linear.Enqueue, linear.Ack, linear.Advance, linear.Cancel, linear.Take, linear.Busy:
		o.Messages = messages(args)
		o.All = (o.Kind == linear.Ack || o.Kind == linear.Advance || o.Kind == linear.Busy) && len(args) == 0
		if o.Kind == linear.Enqueue && o.Outcome == linear.Unknown {
			for i := range o.Messages {
				o.Messages[i].ID = layer.ID{}
			}
		}
	case linear.Nack:
		for len(args) > 0 {
			switch word := next(); word {
			case "acked":
				o.Messages = append(o.Messages, message(next()))
			case "from":
				id := message(next()).ID
				o.From = &id
			case "delay":
				o.Delay = number(t, next())
			case "reject":
				o.Reject = true
			default:
				require.Fail(t, "unknown word", word)
			}
		}
	case linear.Extend:
		if len(args) > 0 {
			o.Until = number(t, next())
		}
	}
	if !hasResult {
		return o
	}
	switch outcome := linear.Outcome(result); outcome {
	case linear.Nothing, linear.ClaimLost, linear.NotInClaim, linear.NoItem, linear.InHand, linear.NotHeld:
		o.Outcome = outcome
		return o
	}
	args = strings.Fields(result)
	switch o.Kind {
	case linear.Receive:
		o.Token = number(t, strings.TrimSuffix(next(), ":"))
		for word := next(); word != "until"; word = next() {
			o.Messages = append(o.Messages, message(word))
		}
		o.Until = number(t, next())
	case linear.Extend:
		o.Until = number(t, next())
	case linear.Release:
		o.Token = number(t, next())
	case linear.Take, linear.Peek:
		o.All = args[len(args)-1] != "..."
		for _, word := range args {
			if word != "..." && word != "empty" {
				o.Messages = append(o.Messages, message(word))
			}
		}
	default:
		require.Fail(t, "a result of nothing", line)
	}
	return o
}

// TestAttemptsBefore: a receive may pass over a message for a claim that no caller was told of only while there may be
// such a claim. A receive of single messages then runs that was retried after a commit of unknown outcome. The lease
// that it asked for must also be able to expire, by the fastest clock, before that receive returns.
func TestAttemptsBefore(t *testing.T) {
	lease := layer.ReceiveOptions{Unordered: true, Lease: 10 * time.Millisecond}
	groups, lasting := lease, lease
	groups.Unordered = false
	lasting.Lease = time.Second
	span := func(call, returned int64, doubted bool) linear.Span {
		return linear.Span{Call: call, Return: returned, Begin: 100, End: 110, Doubted: doubted}
	}
	for _, c := range []struct {
		name   string
		of     layer.ReceiveOptions
		from   linear.Span // of the receive that was, perhaps, tried before
		passed bool
	}{
		{"under way", lease, span(3, 8, true), true},
		{"over", lease, span(3, 4, true), false},
		{"not yet", lease, span(7, 8, true), false},
		{"never in doubt", lease, span(3, 8, false), false},
		{"its lease lasts", lasting, span(3, 8, true), false},
		{"of the group", groups, span(3, 8, true), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &linear.History{}
			h.Add("g", parse(t, "1-2 a enqueue p q"))
			h.Received(c.from, linear.Done, c.of, nil, []string{"g"})
			h.Add("g", parse(t, "5-6 c receive @#q -> 5: q until 200"))
			r, err := linear.Check(linear.Law{}, h.Groups(), linear.CheckOptions{Dir: t.TempDir()})
			require.NoError(t, err)
			require.Equal(t, c.passed, len(r.Violations) == 0, "%s", r)
		})
	}
}
