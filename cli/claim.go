package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/internal/strict"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// jsonClaim is a claim as receive prints it, for ack, nack and extend, of another process too.
type jsonClaim struct {
	Queue  string          `json:"queue"`
	Prefix string          `json:"prefix,omitempty"` // as --prefix reads it; "" = fdbfifo's own
	Group  string          `json:"group"`
	Where  layer.Template  `json:"where,omitempty"` // of a claim by template
	Hold   string          `json:"hold,omitempty"`  // the item of an unordered claim
	Token  int64           `json:"token"`
	Until  time.Time       `json:"until,omitzero"`
	Items  []jsonItem      `json:"items,omitempty"`
	State  *jsonClaimState `json:"state,omitempty"`
}

// jsonClaimState is the state of a claim's group.
type jsonClaimState struct{ jsonBody }

func (s *session) newJSONClaim(c *layer.Claim) jsonClaim {
	j := jsonClaim{Queue: s.queue, Group: c.Group, Where: c.Where, Token: c.Token, Until: c.Until.UTC()}
	if !bytes.Equal(s.prefix(), prefix()) {
		j.Prefix = prefixText(s.prefix())
	}
	if c.Hold != (layer.ID{}) {
		j.Hold = c.Hold.String()
	}
	for _, item := range c.Items {
		j.Items = append(j.Items, newJSONItem(item))
	}
	if c.State != nil {
		j.State = &jsonClaimState{newJSONBody(c.State)}
	}
	return j
}

// receiveFlags are the flags of receive.
type receiveFlags struct {
	group groupFlag
	where whereFlag
	id    string
	o     layer.ReceiveOptions
}

// whereFlag is a template, as FACET=VALUE,….
type whereFlag struct{ template layer.Template }

func (w *whereFlag) String() string {
	if w.template == nil {
		return ""
	}
	return w.template.String()
}

// Set reads the template.
func (w *whereFlag) Set(text string) (err error) {
	w.template, err = layer.ParseTemplate(text)
	return err
}

// Type is what help calls the value.
func (w *whereFlag) Type() string { return "TEMPLATE" }

// holdFlag is a message's id; zero = not given.
type holdFlag struct{ id layer.ID }

func (h *holdFlag) String() string {
	if h.id == (layer.ID{}) {
		return ""
	}
	return h.id.String()
}

// Set reads the id.
func (h *holdFlag) Set(text string) (err error) {
	h.id, err = layer.ParseID(text)
	return err
}

// Type is what help calls the value.
func (h *holdFlag) Type() string { return "ID" }

const receiveHelp = `Claim ready groups, and print each claim as a line of JSON, with its messages. Until the lease
ends no other worker gets these groups. Finish the messages with ack, or give them back with nack, from any process. If
a claim is neither acked nor extended in time, another worker gets the group, and a failed attempt is counted.

If nothing is ready, nothing is printed, and the exit code is 0. A claim that cannot be printed is given back.`

func newReceiveCmd(s *session) *cobra.Command {
	var f receiveFlags
	c := &cobra.Command{
		Use: "receive [--max N] [--groups N] [--group GROUP] [--where TEMPLATE | --unordered] [--lease TIME] " +
			"[--wait TIME [--only-if-any]]",
		Short: "Claim messages and print the claims as JSON, for ack and nack",
		Long:  receiveHelp,
		Example: `  fdbfifo receive --max 10 --lease 5m > claim.json && ./handle < claim.json && fdbfifo ack claim.json
  fdbfifo receive --wait 1m | jq -r '.items[].body'`,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.o.Max < 1 || f.o.Max > layer.MaxBatch {
				return usagef("--max is %d: 1 to %d are allowed", f.o.Max, layer.MaxBatch)
			}
			if err := checkLease(c, f.o.Lease); err != nil {
				return err
			}
			f.o.Group, f.o.Where, f.o.ReceiveID = f.group.given(), f.where.template, f.id
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				return s.receive(c.Context(), q, f.o)
			})
		},
	}
	c.Flags().IntVar(&f.o.Max, "max", 1, "at most `N` messages")
	c.Flags().IntVar(&f.o.MaxGroups, "groups", 0, "of at most `N` groups; 0 = as many as it takes")
	f.group.add(c, "only from this `GROUP`")
	c.Flags().Var(&f.where, "where", "only messages with these facets: a `TEMPLATE` of the queue's views, as state=NEW")
	c.Flags().BoolVar(&f.o.Unordered, "unordered", false,
		"messages that no worker holds, each under a claim of its own, in a queue with the setting unordered")
	c.Flags().DurationVar(&f.o.Lease, "lease", 0, "the `TIME` that the claims last; left out, the queue's")
	c.Flags().DurationVar(&f.o.Wait, "wait", 0, "wait up to `TIME` for a group to become ready")
	c.Flags().BoolVar(&f.o.OnlyIfAny, "only-if-any", false,
		"wait only while there are messages at all, held or delayed")
	c.Flags().BoolVar(&f.o.State, "state", false, "print the groups' states too")
	c.Flags().StringVar(&f.id, "receive-id", "", "an `ID`: the same command, run again, prints the same claims")
	return c
}

func (s *session) receive(ctx context.Context, q *layer.Queue, o layer.ReceiveOptions) error {
	claims, err := q.Receive(ctx, o)
	if err != nil {
		return asUsageIfOptions(err)
	}
	if len(claims) == 0 {
		return s.tellNothingReady(ctx, q, o)
	}
	for i, c := range claims {
		if err := printJSON(s.stdout, s.newJSONClaim(c)); err != nil {
			return s.unprinted(ctx, q, o, claims[i:], err)
		}
	}
	return nil
}

// tellNothingReady says that nothing is ready. If there are messages that wait, it names the command that says why.
func (s *session) tellNothingReady(ctx context.Context, q *layer.Queue, o layer.ReceiveOptions) error {
	st, err := q.Stats(ctx, layer.StatsOptions{})
	if err != nil {
		return err
	}
	if st.Depth == 0 || o.Group != nil {
		s.notice("nothing is ready")
		return nil
	}
	s.notice("nothing is ready: %s says why %s", s.command("groups"), waits(st.Depth))
	return nil
}

func waits(n int64) string {
	if n == 1 {
		return "1 message waits"
	}
	return plural(n, "message") + " wait"
}

// unprinted gives back claims that could not be printed, and returns the error.
func (s *session) unprinted(
	ctx context.Context, q *layer.Queue, o layer.ReceiveOptions, claims []*layer.Claim, err error,
) error {
	again := "Receive again."
	if o.ReceiveID != "" { // with the same one it would get those that have ended, which is nothing
		again = "Receive again, with another --receive-id."
	}
	hint := "The claims that could not be printed were given back. "
	kept := s.giveBack(ctx, q, claims)
	text := err.Error()
	if kept != nil {
		text += "\n" + kept.Error()
		hint = "A claim that was not given back is held until its lease ends, and the others were given back. "
	}
	return &Error{Text: text, Hint: hint + again, Err: errors.Join(err, kept)}
}

// giveBack returns claims that could not be printed. It counts no attempt.
func (s *session) giveBack(ctx context.Context, q *layer.Queue, claims []*layer.Claim) error {
	ctx, cancel := ending(ctx)
	defer cancel()
	var failed []error
	for _, c := range claims {
		if err := q.Nack(ctx, c, layer.NackOptions{Release: true}); err != nil {
			failed = append(failed, fmt.Errorf("group %s was not given back: %w", display(c.Group), err))
			continue
		}
		s.notice("gave back group %s, whose claim could not be printed", display(c.Group))
	}
	return errors.Join(failed...)
}

// checkLease refuses a lease out of bounds. 0 is allowed only if the flag is not set.
func checkLease(c *cobra.Command, lease time.Duration) error {
	if c.Flags().Changed("lease") && (lease < layer.MinLease || lease > layer.MaxLease) {
		return usagef("--lease is %s: %s to %s are allowed", lease, layer.MinLease, layer.MaxLease)
	}
	return nil
}

// claimFlags name a claim without JSON.
type claimFlags struct {
	group groupFlag
	where whereFlag
	hold  holdFlag
	token int64
}

// claimHelp is a part of the help of each command that takes claims.
const claimHelp = `

The claims are lines that receive has printed, in a FILE or from stdin. --group and --token, which groups --json
prints, name a single claim. A line says the queue and the prefix of its claim: you need not give them.`

func (f *claimFlags) add(c *cobra.Command) {
	f.group.add(c, "the `GROUP` of a claim, without JSON")
	c.Flags().Var(&f.where, "where", "the `TEMPLATE` of the claim, if it has one")
	c.Flags().Var(&f.hold, "hold", "the `ID` of its message, if the claim is of one message alone")
	c.Flags().Int64Var(&f.token, "token", 0, "the token of the claim, `N`")
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usagef("give one FILE of claims, or none for stdin")
		}
		return nil
	}
}

// read returns the claims in the command's input, and makes their queue the command's.
func (f *claimFlags) read(s *session, c *cobra.Command, args []string) ([]*layer.Claim, error) {
	group := f.group.given()
	if group != nil || slices.ContainsFunc([]string{"token", "where", "hold"}, c.Flags().Changed) {
		if group == nil || f.token <= 0 {
			return nil, usagef("a claim is named by --group and by --token, which is more than 0: give both")
		}
		if len(args) > 0 {
			return nil, usagef("a file of claims and --group do not go together: give one of them")
		}
		return []*layer.Claim{{Group: *group, Where: f.where.template, Hold: f.hold.id, Token: f.token}}, nil
	}
	name := "-"
	if len(args) > 0 {
		name = args[0]
	}
	in, err := s.openClaims(c.Context(), name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	claims, err := s.readClaims(c, in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", inputName(name), err)
	}
	if len(claims) == 0 {
		return nil, usagef("%s has no claim: give the lines that receive has printed", inputName(name))
	}
	return claims, nil
}

// openClaims opens a file, or stdin if it is "-". The caller must close it.
func (s *session) openClaims(ctx context.Context, name string) (io.ReadCloser, error) {
	if name != "-" {
		file, err := openFile(ctx, name)
		if err != nil {
			return nil, err
		}
		return claimFile{untilInterrupted(ctx, file), file}, nil
	}
	if s.app.terminal(s.stdin) {
		return nil, usagef("stdin is a terminal: give a file or a pipe with the claims that receive has printed")
	}
	return io.NopCloser(untilInterrupted(ctx, s.stdin)), nil
}

// claimFile is a file of claims whose reads end when the command is interrupted.
type claimFile struct {
	io.Reader
	io.Closer
}

// maxClaim bounds a line of a file of claims. A receive has less than 8 MiB of bodies, and an escape has six bytes for
// one.
const maxClaim = 64 << 20 // bytes

// perClaim reads at most left bytes, so that a file that has no claims is not read into memory.
type perClaim struct {
	r    io.Reader
	left int
}

func (p *perClaim) Read(b []byte) (int, error) {
	if p.left <= 0 {
		return 0, fmt.Errorf("more than %s bytes without an end of a claim", commas(maxClaim))
	}
	n, err := p.r.Read(b[:min(len(b), p.left)])
	p.left -= n
	return n, err
}

func (s *session) readClaims(c *cobra.Command, in io.Reader) ([]*layer.Claim, error) {
	var claims []*layer.Claim
	var first jsonClaim
	plain, err := utf8Text(in)
	if err != nil {
		return nil, err
	}
	bounded := &perClaim{r: plain}
	for decoder := json.NewDecoder(bounded); ; {
		bounded.left = maxClaim
		var read struct {
			jsonClaim
			Group *string `json:"group"` // "" is the default group, and none is no claim
		}
		var text json.RawMessage
		err := decoder.Decode(&text)
		if err == nil {
			err = strict.Unmarshal(text, &read)
		}
		if errors.Is(err, io.EOF) {
			return claims, nil
		}
		if errors.Is(err, errInterrupted) {
			return nil, err
		}
		if err != nil {
			return nil, fmt.Errorf("this is no claim: %w", jsonWords(err))
		}
		j := read.jsonClaim
		if j.Token <= 0 || j.Queue == "" || read.Group == nil {
			return nil, errors.New("a claim must have a queue, a group and a token: give lines as receive prints them")
		}
		if len(claims) == 0 {
			first = j
			if err := s.follow(c, j); err != nil {
				return nil, err
			}
		} else if j.Queue != first.Queue || j.Prefix != first.Prefix {
			return nil, errors.New("the claims are of several queues: give those of one queue")
		}
		claim := &layer.Claim{Queue: j.Queue, Group: *read.Group, Where: j.Where, Token: j.Token, Until: j.Until}
		if j.Hold != "" {
			if claim.Hold, err = layer.ParseID(j.Hold); err != nil {
				return nil, err
			}
		}
		if j.Items != nil || hasMember(text, "items") {
			claim.Items = []layer.Item{} // a member that is null has no messages, too
		}
		for _, item := range j.Items {
			id, err := layer.ParseID(item.ID)
			if err != nil {
				return nil, err
			}
			claim.Items = append(claim.Items, layer.Item{ID: id})
		}
		claims = append(claims, claim)
	}
}

// hasMember reports whether an object of JSON has a member.
func hasMember(object json.RawMessage, name string) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(object, &members) == nil && members[name] != nil
}

// follow makes the claim's queue and prefix those of the command. It refuses flags that name others.
func (s *session) follow(c *cobra.Command, j jsonClaim) error {
	if c.Flags().Changed("queue") && s.queue != j.Queue {
		return usagef("the claim is of queue %s, and --queue is %s: leave the flag out",
			display(j.Queue), display(s.queue))
	}
	s.queue = j.Queue
	key := prefix()
	if j.Prefix != "" {
		parsed, err := parsePrefix(j.Prefix)
		if err != nil {
			return err
		}
		key = append([]byte{}, parsed...)
	}
	switch {
	case c.Flags().Changed("directory"):
		s.place.claimed = key
	case c.Flags().Changed("prefix"):
		return s.place.holds(key, "--prefix")
	case j.Prefix != "":
		s.place.key = key
	}
	return nil
}

type jsonSettled struct {
	Done  string     `json:"done"`
	Group string     `json:"group"`
	Token int64      `json:"token"`
	Until *time.Time `json:"until,omitempty"`
}

// settle calls do for each claim, and says so. It names the claims that are lost, and settles the others. It also
// settles them if it cannot print.
func (s *session) settle(
	c *cobra.Command, claims []*layer.Claim, verb string,
	do func(q *layer.Queue, claim *layer.Claim) (time.Time, error),
) error {
	return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
		var failed []error
		var unprinted error
		done := 0
		for _, claim := range claims {
			until, err := do(q, claim)
			if err != nil && c.Context().Err() != nil {
				failed = append(failed, err)
				break
			}
			if err != nil {
				failed = append(failed, s.lost(err))
				continue
			}
			if done++; unprinted == nil {
				unprinted = s.printSettled(verb, claim, until)
			}
		}
		if unprinted != nil {
			failed = append(failed, unprinted)
		}
		err := errors.Join(failed...)
		if all := int64(len(claims)); err != nil && all > 1 && (unprinted != nil || c.Context().Err() != nil) {
			return fmt.Errorf("%w; %s of %s are %s", err, commas(int64(done)), plural(all, "claim"), verb)
		}
		return err
	})
}

func (s *session) printSettled(verb string, claim *layer.Claim, until time.Time) error {
	if s.json {
		j := jsonSettled{Done: verb, Group: claim.Group, Token: claim.Token}
		if !until.IsZero() {
			utc := until.UTC()
			j.Until = &utc
		}
		return printJSON(s.stdout, j)
	}
	text := verb + " group " + display(claim.Group)
	if !until.IsZero() {
		text += " until " + until.UTC().Format("2006-01-02 15:04:05.000 UTC")
	}
	_, err := fmt.Fprintln(s.stdout, text)
	return err
}

// lost returns err with a text that says what happens to the messages of the claim.
func (s *session) lost(err error) error {
	hint := ""
	switch {
	case errors.Is(err, layer.ErrClaimLost):
		hint = "It was settled before, or its lease has expired and another worker has the group. Messages that\n" +
			"  were not acked are delivered again: " + s.command("groups") + " says where."
	case errors.Is(err, layer.ErrNotInClaim):
		hint = "The message was acked before, or was not delivered with this claim. Nothing was changed."
	default:
		return asUsageIfOptions(err)
	}
	return &Error{Text: strings.TrimPrefix(err.Error(), "layer: "), Hint: hint, Err: err}
}

// ids reads ids of messages.
func ids(given []string) ([]layer.ID, error) {
	var all []layer.ID
	for _, text := range given {
		id, err := layer.ParseID(text)
		if err != nil {
			return nil, asUsage(err)
		}
		all = append(all, id)
	}
	return all, nil
}

func newAckCmd(s *session) *cobra.Command {
	var f claimFlags
	var some []string
	c := &cobra.Command{
		Use:   "ack [FILE | --group GROUP --token N] [--id ID]...",
		Short: "Finish the messages of claims that receive has printed",
		Long: `Finish the messages of claims: they are never delivered again, and their groups are free. With --id,
only those messages; the claim continues for the others. A line finishes the messages in its items, so you can take out
those that must stay. A line without the member items, and --token, finish the whole claim.` + claimHelp,
		Example: `  fdbfifo receive | tee claim.json | ./handle && fdbfifo ack claim.json`,
		RunE: func(c *cobra.Command, args []string) error {
			claims, err := f.read(s, c, args)
			if err != nil {
				return err
			}
			chosen, err := ids(some)
			if err != nil {
				return err
			}
			if len(chosen) > 0 && len(claims) > 1 {
				return usagef("--id needs a single claim, and there are %d", len(claims))
			}
			for _, claim := range claims {
				if len(chosen) == 0 && claim.Items != nil && len(claim.Items) == 0 {
					return usagef("the claim of group %s has no items: leave the line out, or leave out the member "+
						"items to finish the whole claim", display(claim.Group))
				}
			}
			return s.settle(c, claims, "acked", func(q *layer.Queue, claim *layer.Claim) (time.Time, error) {
				switch {
				case len(chosen) > 0:
					return time.Time{}, q.AckItems(c.Context(), claim, chosen)
				case claim.Items != nil:
					return time.Time{}, ackLine(c.Context(), q, claim)
				}
				return time.Time{}, q.Ack(c.Context(), claim)
			})
		},
	}
	f.add(c)
	c.Flags().StringArrayVar(&some, "id", nil, "only the message with this `ID` (repeatable)")
	return c
}

// ackLine finishes the messages in the line of a claim. It passes over those that were acked before, for example with
// --id. If all were, it returns an error that wraps layer.ErrNotInClaim.
func ackLine(ctx context.Context, q *layer.Queue, claim *layer.Claim) error {
	var all []layer.ID
	for _, item := range claim.Items {
		all = append(all, item.ID)
	}
	err := q.AckItems(ctx, claim, all)
	if !errors.Is(err, layer.ErrNotInClaim) || kv.MaybeCommitted(err) {
		return err
	}
	return q.Once(ctx, func(tx kv.Tx) error {
		done := 0
		var ack func(ids []layer.ID) error
		ack = func(ids []layer.ID) error {
			err := q.AckItemsTx(ctx, tx, claim, ids)
			switch {
			case err == nil:
				done += len(ids)
			case errors.Is(err, layer.ErrClaimLost) && done > 0:
				return nil // this transaction has finished the last message of the claim
			case errors.Is(err, layer.ErrNotInClaim) && len(ids) > 1: // some of them, or all: nothing is written
				if err := ack(ids[:len(ids)/2]); err != nil {
					return err
				}
				return ack(ids[len(ids)/2:])
			case errors.Is(err, layer.ErrNotInClaim):
				return nil
			}
			return err
		}
		if err := ack(all); err != nil || done > 0 {
			return err
		}
		return fmt.Errorf("%w: all of the line", layer.ErrNotInClaim)
	})
}

func newNackCmd(s *session) *cobra.Command {
	var f claimFlags
	var o layer.NackOptions
	var text string
	var acked []string
	c := &cobra.Command{
		Use: "nack [FILE | --group GROUP --token N] [--error TEXT] " +
			"[--release | --delay TIME | --at-once | --reject REASON]",
		Short: "Give back claims that receive has printed",
		Long: `Give back claims: the messages that are left are delivered again, in the same order. The first message
was tried and counts a failed attempt, and its group waits as the queue's retry policy says. --release says that it was
not tried, --reject that it has failed for good.` + claimHelp,
		RunE: func(c *cobra.Command, args []string) error {
			claims, err := f.read(s, c, args)
			if err != nil {
				return err
			}
			if text != "" {
				o.Err = errors.New(text)
			}
			o.AtOnce = o.AtOnce || c.Flags().Changed("delay") && o.Delay == 0
			done, err := ids(acked)
			if err != nil {
				return err
			}
			if len(done) > 0 && len(claims) > 1 {
				return usagef("--acked needs a single claim, and there are %d", len(claims))
			}
			return s.settle(c, claims, "nacked", func(q *layer.Queue, claim *layer.Claim) (time.Time, error) {
				if len(done) == 0 {
					return time.Time{}, q.Nack(c.Context(), claim, o)
				}
				return time.Time{}, q.Settle(c.Context(), layer.Settlement{Claim: claim, Finish: done, Nack: &o})
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&text, "error", "", "the error, a `TEXT` that is kept with the attempt")
	c.Flags().DurationVar(&o.Delay, "delay", 0, "deliver again after `TIME`; left out, by the retry policy")
	c.Flags().BoolVar(&o.AtOnce, "at-once", false, "deliver again at once")
	c.Flags().BoolVar(&o.Release, "release", false, "the first message was not tried: count no attempt")
	c.Flags().StringVar(&o.Reject, "reject", "", "the first message will never succeed, and why: `REASON`")
	c.Flags().StringArrayVar(&acked, "acked", nil, "first finish the message with this `ID` (repeatable)")
	return c
}

func newExtendCmd(s *session) *cobra.Command {
	var f claimFlags
	var lease time.Duration
	c := &cobra.Command{
		Use:   "extend [FILE | --group GROUP --token N] [--lease TIME]",
		Short: "Make claims that receive has printed last longer",
		Long:  "Make claims last longer: for TIME from now, or for the queue's lease." + claimHelp,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkLease(c, lease); err != nil {
				return err
			}
			claims, err := f.read(s, c, args)
			if err != nil {
				return err
			}
			return s.settle(c, claims, "extended", func(q *layer.Queue, claim *layer.Claim) (time.Time, error) {
				return q.Extend(c.Context(), claim, lease)
			})
		},
	}
	f.add(c)
	c.Flags().DurationVar(&lease, "lease", 0, "the `TIME` from now; left out, the queue's lease")
	return c
}
