package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// enqueueFlags are the flags of enqueue.
type enqueueFlags struct {
	group      groupFlag
	body       string
	bodyFile   string
	file       string
	format     string
	groupField string
	dedupID    string
	dedupField string
	delay      time.Duration
	headers    []string
	// headerFields are NAME or NAME=FIELD: the header NAME gets the value of the field.
	headerFields []string
	partial      bool
	ids          bool
	refuse       bool // duplicates
	alone        bool
	joins        bool
	tenant       string
}

const enqueueHelp = `Append a message, or all messages of a file, to the queue; it is created if it does not exist.

A file is CSV with a header line, or JSON lines (one object a line); - is stdin. Each record becomes a
message whose body is the record as it stands. --group-field names the CSV column or the JSON field with the group.
Without it all messages go to --group, or to the default group, and are handled one after the other. --alone gives each
message a group of its own, as in a queue without order. --dedup-field names the column or field with the dedup id; a
record where it is empty has none. --header-field names a column or field that becomes a header; a record where it is
empty, or missing in JSON, has no such header. --ids prints the id of each message, in the order of the records.

A message whose dedup id was sent before is a duplicate, and is not enqueued again: see the settings dedup_ of config.
The command then says so on stderr, and is done. With --refuse-duplicates its exit code is 10 instead; all messages that
are no duplicates are enqueued.
--delay keeps messages back; --delay 0s delivers at once, whatever the queue's delay is.

A file is checked whole before any of it is enqueued: if a record is bad, nothing is enqueued. With --partial the
records before the bad one are. In both cases the exit code is 1, and the error names the line.`

func newEnqueueCmd(s *session) *cobra.Command {
	var f enqueueFlags
	c := &cobra.Command{
		Use:   "enqueue (--body TEXT | --body-file FILE | --file FILE) [flags]",
		Short: "Append messages from a flag, a CSV or JSON-lines file, or stdin",
		Long:  enqueueHelp,
		Example: `  fdbfifo enqueue --group ATL --body hello
  fdbfifo enqueue --group ATL --body-file picture.png
  fdbfifo enqueue --file flights.csv --group-field origin --header-field carrier
  tail -f log.jsonl | fdbfifo enqueue --file - --format jsonl --group-field user --partial`,
		RunE: func(c *cobra.Command, _ []string) error {
			o, err := f.options(c.Flags().Changed)
			if err != nil {
				return err
			}
			switch changed := c.Flags().Changed; {
			case changed("body"):
				return s.enqueueOne(c.Context(), o, f, []byte(f.body))
			case changed("body-file"):
				body, err := s.readBody(c.Context(), f.bodyFile)
				if err != nil {
					return err
				}
				return s.enqueueOne(c.Context(), o, f, body)
			}
			return s.enqueueFile(c.Context(), o, f)
		},
	}
	f.group.add(c, "the `GROUP`; left out, the default group")
	c.Flags().StringVar(&f.body, "body", "", "the `TEXT` of one message")
	c.Flags().StringVar(&f.bodyFile, "body-file", "", "a `FILE` that is the body of one message; - is stdin")
	c.Flags().StringVar(&f.file, "file", "", "a `FILE` of messages; - is stdin")
	c.Flags().StringVar(&f.format, "format", "", "`csv` or jsonl; left out, by the file's name")
	c.Flags().StringVar(&f.groupField, "group-field", "", "the `NAME` of the CSV column or JSON field that is the group")
	c.Flags().StringVar(&f.dedupID, "dedup-id", "", "the dedup `ID` of one message")
	c.Flags().StringVar(&f.dedupField, "dedup-field", "", "the `NAME` of the CSV column or JSON field that is the dedup id")
	c.Flags().DurationVar(&f.delay, "delay", 0, "keep back for a `DURATION`; left out, the queue's delay")
	c.Flags().BoolVar(&f.joins, "join-when-due", false,
		"with --delay: delay no other message; when it is due, the message goes to the tail of its group")
	c.Flags().StringArrayVar(&f.headers, "header", nil, "a header `NAME=VALUE` of every message (repeatable)")
	c.Flags().StringArrayVar(&f.headerFields, "header-field", nil,
		"`NAME` of a header that is the CSV column or JSON field NAME, or NAME=FIELD (repeatable)")
	c.Flags().BoolVar(&f.alone, "alone", false, "give each message a group of its own: it waits for no other")
	c.Flags().StringVar(&f.tenant, "tenant", "", "with --alone: the `TENANT` of the messages, for a queue that is fair")
	c.Flags().BoolVar(&f.ids, "ids", false, "print the id of each message, one a line")
	c.Flags().BoolVar(&f.refuse, "refuse-duplicates", false, "fail with exit code 10 if a message is a duplicate")
	c.Flags().BoolVar(&f.partial, "partial", false, "enqueue the records before a bad one, instead of nothing")
	return c
}

// options checks the flags against each other.
func (f *enqueueFlags) options(changed func(string) bool) (sourceOptions, error) {
	o := sourceOptions{
		group: f.group.name, groupField: f.groupField,
		format: f.format, dedupID: f.dedupID, dedupField: f.dedupField,
		delay: f.delay, joins: f.joins, alone: f.alone, tenant: f.tenant, atOnce: changed("delay") && f.delay == 0,
	}
	one, given := changed("body") || changed("body-file"), 0
	for _, name := range []string{"body", "body-file", "file"} {
		if changed(name) {
			given++
		}
	}
	switch {
	case given != 1:
		return o, usagef("give one of --body TEXT, --body-file FILE and --file FILE (- is stdin)")
	case one && (changed("group-field") || changed("format") || changed("partial")):
		return o, usagef("--group-field, --format and --partial need --file: a single message has no fields")
	case one && changed("header-field"):
		return o, usagef("--header-field needs --file: give --header for a single message")
	case one && changed("dedup-field"), changed("file") && changed("dedup-id"):
		return o, usagef("give --dedup-id with --body or --body-file, and --dedup-field with --file")
	case f.delay < 0 || f.delay > layer.MaxDelay:
		return o, usagef("--delay is %s: 0s to %s are allowed", f.delay, layer.MaxDelay)
	case f.group.given() != nil && changed("group-field"):
		return o, usagef("--group and --group-field do not go together: give one of them")
	case f.alone && (f.group.given() != nil || changed("group-field")):
		return o, usagef("--alone and a group do not go together: give one of them")
	case f.joins && (f.delay == 0 || f.alone):
		return o, usagef("--join-when-due needs --delay, and does not go with --alone")
	case f.tenant != "" && !f.alone:
		return o, usagef("--tenant needs --alone")
	}
	var err error
	if o.headers, err = parseHeaders(f.headers); err != nil {
		return o, err
	}
	if one {
		return o, nil
	}
	if o.headerFields, err = parseHeaderFields(f.headerFields, o.headers); err != nil {
		return o, err
	}
	if o.format == "" {
		switch strings.ToLower(filepath.Ext(f.file)) {
		case ".csv":
			o.format = "csv"
		case ".jsonl", ".ndjson":
			o.format = "jsonl"
		default:
			return o, usagef("--file: the name %q tells no format: give --format csv or --format jsonl", f.file)
		}
	}
	if o.format != "csv" && o.format != "jsonl" {
		return o, usagef("--format is %q: csv or jsonl is wanted", o.format)
	}
	return o, nil
}

// parseHeaders reads the values of --header; nil if there are none.
func parseHeaders(given []string) (map[string]string, error) {
	var headers map[string]string
	for _, header := range given {
		name, value, ok := strings.Cut(header, "=")
		if !ok || name == "" {
			return nil, usagef("--header is %q: NAME=VALUE is wanted", header)
		}
		if headers == nil {
			headers = make(map[string]string)
		}
		if _, twice := headers[name]; twice {
			return nil, usagef("--header %s is given twice", name)
		}
		headers[name] = value
	}
	return headers, nil
}

// parseHeaderFields reads the values of --header-field; fixed are the headers that every message has.
func parseHeaderFields(given []string, fixed map[string]string) ([]headerField, error) {
	var fields []headerField
	for _, text := range given {
		name, field, named := strings.Cut(text, "=")
		if !named {
			field = name
		}
		if name == "" || field == "" {
			return nil, usagef("--header-field is %q: NAME or NAME=FIELD is wanted", text)
		}
		_, twice := fixed[name]
		if twice || slices.ContainsFunc(fields, func(f headerField) bool { return f.name == name }) {
			return nil, usagef("--header-field: the header %s is given twice", name)
		}
		fields = append(fields, headerField{name, field})
	}
	return fields, nil
}

// nothingIn has, for each format, the reason why an input has no messages.
var nothingIn = map[string]string{
	"csv": "there is no record below the header line", "jsonl": "there is no line with a JSON object",
}

type enqueueResult struct {
	Queue    string `json:"queue"`
	Enqueued int64  `json:"enqueued"`
	ID       string `json:"id,omitempty"` // of a single message, or of the earlier message that it duplicates
	// Duplicates were not enqueued.
	Duplicates int64 `json:"duplicates,omitempty"`
}

func (s *session) enqueueOne(ctx context.Context, o sourceOptions, f enqueueFlags, body []byte) error {
	m := o.complete(layer.Message{Group: o.group, Body: body, DedupID: o.dedupID})
	if err := m.Check(); err != nil {
		return err
	}
	return s.withQueue(ctx, true, func(q *layer.Queue) error {
		sent, err := q.Enqueue(ctx, m)
		if err != nil {
			return err
		}
		result, text := enqueueResult{Queue: s.queue, Enqueued: 1, ID: sent[0].ID.String()}, "enqueued"
		if sent[0].Duplicate {
			result.Enqueued, result.Duplicates, text = 0, 1, "not enqueued, a duplicate of"
		}
		if s.json {
			err = printJSON(s.stdout, result)
		} else {
			_, err = fmt.Fprintf(s.stdout, "%s %s\n", text, sent[0].ID)
		}
		if err != nil {
			err = fmt.Errorf("%s %s, but: %w", text, sent[0].ID, err)
		}
		return errors.Join(err, s.tellDuplicates(f, result.Duplicates))
	})
}

// tellDuplicates says how many messages were not enqueued, or returns an error that says so.
func (s *session) tellDuplicates(f enqueueFlags, n int64) error {
	if n == 0 {
		return nil
	}
	text := "1 duplicate was not enqueued"
	if n > 1 {
		text = commas(n) + " duplicates were not enqueued"
	}
	if f.refuse {
		return &Error{Text: text, Hint: duplicatesHint, Exit: ExitDuplicate}
	}
	s.notice("%s", text)
	return nil
}

const duplicatesHint = `The queue remembers an earlier message with the same dedup id, or with the same body
  if dedup_by is content.`

// enqueueFile enqueues a file's messages. Unless partial, it reads the file twice: to check it, and to enqueue.
func (s *session) enqueueFile(ctx context.Context, o sourceOptions, f enqueueFlags) error {
	name, partial := f.file, f.partial
	var in io.ReadSeeker
	var stream io.Reader
	if name == "-" {
		stream = s.input(ctx)
	} else {
		file, err := openFile(ctx, name)
		if err != nil {
			return err
		}
		defer file.Close()
		in, stream = file, untilInterrupted(ctx, file)
	}
	total := int64(-1)
	if !partial {
		if in == nil || !seekable(in) {
			copied, err := spool(stream)
			if err != nil {
				return unspooled(err)
			}
			defer os.Remove(copied.Name())
			defer copied.Close()
			in, stream = copied, copied
		}
		var err error
		if total, err = s.validate(ctx, in, o); err != nil {
			return fmt.Errorf("%s: %w; nothing was enqueued", inputName(name), err)
		}
		if _, err := in.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("%w; nothing was enqueued", err)
		}
	}
	src, err := newSource(stream, o)
	if err != nil {
		return fmt.Errorf("%s: %w; nothing was enqueued", inputName(name), err)
	}
	return s.withQueue(ctx, true, func(q *layer.Queue) error {
		if !partial && chooses(q.Config()) {
			var err error
			if src, err = s.offer(ctx, q, in, o); err != nil {
				return fmt.Errorf("%s: %w; nothing was enqueued", inputName(name), err)
			}
		}
		see := func([]layer.Sent) error { return nil }
		if f.ids {
			see = s.printSent
		}
		n, duplicates, last, err := s.enqueueAll(ctx, q, src, total, see)
		switch {
		case err == nil:
		case onlyOutput(err):
			err = fmt.Errorf("%s: %w; all of it is done: %s enqueued", inputName(name), err, were(n))
			return errors.Join(err, s.tellDuplicates(f, duplicates))
		case kv.MaybeCommitted(err):
			next := "the first records"
			if last > 0 {
				next = fmt.Sprintf("the records behind line %d", last)
			}
			return fmt.Errorf("%s: %w; %s enqueued before that; %s may be enqueued, too",
				inputName(name), err, were(n), next)
		case last > 0:
			return fmt.Errorf("%s: %w; %s enqueued before that; to continue, leave out the records up to line %d",
				inputName(name), err, were(n), last)
		default:
			return fmt.Errorf("%s: %w; %s enqueued before that", inputName(name), err, were(n))
		}
		if n == 0 && duplicates == 0 {
			s.notice("%s has no messages: %s", inputName(name), nothingIn[o.format])
		}
		switch {
		case s.json:
			err = printJSON(s.stdout, enqueueResult{Queue: s.queue, Enqueued: n, Duplicates: duplicates})
		case !f.ids: // otherwise the ids are the result
			text := "enqueued " + plural(n, "message")
			if duplicates > 0 {
				text += "; not enqueued: " + plural(duplicates, "duplicate")
			}
			_, err = fmt.Fprintln(s.stdout, text)
		}
		return errors.Join(err, s.tellDuplicates(f, duplicates))
	})
}

// jsonSent is a message of a file that was enqueued.
type jsonSent struct {
	ID        string `json:"id"` // of the first message, for a duplicate
	Duplicate bool   `json:"duplicate,omitempty"`
}

// printSent prints the ids of messages, in their order.
func (s *session) printSent(sent []layer.Sent) error {
	for _, one := range sent {
		var err error
		if s.json {
			err = printJSON(s.stdout, jsonSent{one.ID.String(), one.Duplicate})
		} else {
			_, err = fmt.Fprintln(s.stdout, display(one.ID.String()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func inputName(name string) string {
	if name == "-" {
		return "stdin"
	}
	return name
}

func were(n int64) string {
	switch n {
	case 0:
		return "nothing was"
	case 1:
		return "1 message was"
	}
	return commas(n) + " messages were"
}

// seekable reports whether in can seek. A named pipe cannot.
func seekable(in io.Seeker) bool {
	_, err := in.Seek(0, io.SeekStart)
	return err == nil
}

// spool copies a stream into a temporary file, which the caller closes and removes.
func spool(in io.Reader) (*os.File, error) {
	file, err := os.CreateTemp("", "fdbfifo-*.spool")
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(file, in); err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return file, nil
}

// unspooled returns the error for an input that could not be copied. If the folder for temporary files has no room, the
// database may have some, and nothing is confirmed yet.
func unspooled(err error) error {
	text := err.Error() + "; nothing was enqueued"
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w; nothing was enqueued", err)
	}
	hint := "The input is copied to " + os.TempDir() + " and checked first. Make room there, set TMPDIR to another\n" +
		"  folder, or give --partial, which copies nothing."
	return &Error{Text: text, Hint: hint, Err: err}
}

// validate reads the whole input and returns the number of its messages.
func (s *session) validate(ctx context.Context, in io.Reader, o sourceOptions) (int64, error) {
	src, err := newSource(untilInterrupted(ctx, in), o)
	if err != nil {
		return 0, err
	}
	p := s.newProgress("checking", "message", -1)
	defer p.close()
	for n := int64(0); ; n++ {
		_, _, err := src.next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		if n%1000 == 0 {
			p.set(n)
		}
	}
}

// chooses reports whether a queue may refuse a message that another queue takes: see layer.Message.Check.
func chooses(c layer.Config) bool {
	return c.GroupRequired || c.DedupInGroup || c.Unordered || len(c.Facets) > 0
}

// errTakes ends the transaction in which a queue was asked whether it takes a batch.
var errTakes = errors.New("the queue takes the batch")

// offer asks the queue whether it takes the messages of a whole input, in transactions that are not committed. It
// returns a source of the same messages. A group that is full may have room when its turn comes, so that is no error.
func (s *session) offer(ctx context.Context, q *layer.Queue, in io.ReadSeeker, o sourceOptions) (source, error) {
	begin := func() (source, error) {
		if _, err := in.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		return newSource(untilInterrupted(ctx, in), o)
	}
	src, err := begin()
	if err != nil {
		return nil, err
	}
	p := s.newProgress("checking", "message", -1)
	defer p.close()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	records := readAhead(reading, src)
	var held *yielded
	for n := 0; ; {
		batch, lines, rest, err := nextBatch(ctx, records, held, false)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		asked := q.Once(ctx, func(tx kv.Tx) error {
			_, err := q.EnqueueTx(ctx, tx, batch...)
			if err == nil || errors.Is(err, layer.ErrFull) {
				return errTakes
			}
			return err
		})
		var bad *layer.MessageError
		switch {
		case errors.As(asked, &bad):
			return nil, &inputError{lines[bad.Index], bad.Err}
		case !errors.Is(asked, errTakes):
			return nil, asked
		case err != nil: // the end
			return begin()
		}
		n += len(batch)
		p.set(int64(n))
		held = rest
	}
}

// The limits of one transaction of an enqueue. Such a transaction is quick, and well within the layer's limits.
const (
	enqueueBatch = 500
	enqueueBytes = 1 << 20 // of bodies and headers; a larger message goes alone
)

// enqueueAll enqueues the messages of src. It returns how many were confirmed, how many were duplicates, and the line
// of the last record of either kind (0 = none). It calls see with each confirmed batch. It enqueues the records before
// an error of src, and those before one that the queue refuses. Without a total src is a stream, which may be slow. A
// batch of a stream has the records that have arrived when the batch before is confirmed. An error of see ends the
// enqueue of a stream. Other input is enqueued to its end, and the error is returned then.
func (s *session) enqueueAll(
	ctx context.Context, q *layer.Queue, src source, total int64, see func([]layer.Sent) error,
) (done, duplicates int64, last int, err error) {
	p := s.newProgress("enqueueing", "message", total)
	defer p.close()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	records := readAhead(reading, src)
	var held *yielded // read, but too large for the batch before
	var unprinted error
	for {
		batch, lines, rest, err := nextBatch(ctx, records, held, total < 0)
		sent, e := q.Enqueue(ctx, batch...)
		var bad *layer.MessageError
		if errors.As(e, &bad) {
			err, batch = &inputError{lines[bad.Index], bad.Err}, batch[:bad.Index]
			sent, e = q.Enqueue(ctx, batch...)
		}
		if e != nil {
			return done, duplicates, last, e
		}
		if len(batch) > 0 {
			last = lines[len(batch)-1]
			for _, one := range sent {
				if one.Duplicate {
					duplicates++
				} else {
					done++
				}
			}
			p.set(done + duplicates)
			if unprinted == nil {
				unprinted = see(sent)
			}
			if unprinted != nil && total < 0 {
				return done, duplicates, last, &Error{Text: unprinted.Error(), Err: unprinted}
			}
		}
		if errors.Is(err, io.EOF) {
			return done, duplicates, last, unprinted
		}
		if err != nil {
			return done, duplicates, last, err
		}
		held = rest
	}
}

// yielded is a message, or an error, that came from a source.
type yielded struct {
	m    layer.Message
	line int
	err  error
}

// units returns how many units of the read-ahead the message takes.
func (y *yielded) units() int { return 1 + len(y.m.Body)/aheadUnit }

// ahead is the records that were read and are not in a batch yet. Code that waits for a record must look at the context
// of readAhead too.
type ahead struct {
	records chan yielded
	taken   chan struct{} // a token for each unit of the records, so that large records do not fill the memory
}

// The read-ahead has at most 8 MiB of bodies, and enqueueBatch small messages. The largest message needs 257 units.
const (
	aheadUnit  = 16 << 10 // bytes
	aheadUnits = 512
)

// readAhead reads src until it ends or ctx does.
func readAhead(ctx context.Context, src source) *ahead {
	a := &ahead{make(chan yielded, enqueueBatch), make(chan struct{}, aheadUnits)}
	go func() {
		for {
			m, line, err := src.next()
			r := yielded{m, line, err}
			for range r.units() {
				select {
				case a.taken <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case a.records <- r:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return a
}

// free makes room for other records after the record was received.
func (a *ahead) free(r *yielded) {
	for range r.units() {
		<-a.taken
	}
}

// nextBatch waits until a batch is full. From a stream it waits for one message, and adds those that have already
// arrived. lines are those of the messages. rest is a message that did not fit. An error comes with the messages
// before it, and ends the source.
func nextBatch(
	ctx context.Context, ahead *ahead, held *yielded, stream bool,
) (batch []layer.Message, lines []int, rest *yielded, err error) {
	size := 0
	for len(batch) < enqueueBatch {
		var r yielded
		switch {
		case held != nil:
			r, held = *held, nil
		case stream && len(batch) > 0 && len(ahead.records) == 0:
			return batch, lines, nil, nil
		default:
			select {
			case r = <-ahead.records:
				ahead.free(&r)
			case <-ctx.Done():
				return nil, nil, nil, errInterrupted
			}
		}
		if ctx.Err() != nil {
			return nil, nil, nil, errInterrupted
		}
		if r.err != nil {
			return batch, lines, nil, r.err
		}
		size += len(r.m.Body)
		for name, value := range r.m.Headers {
			size += len(name) + len(value)
		}
		if len(batch) > 0 && size > enqueueBytes {
			return batch, lines, &r, nil
		}
		batch, lines = append(batch, r.m), append(lines, r.line)
	}
	return batch, lines, nil, nil
}
