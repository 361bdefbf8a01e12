package cli

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"fdbfifo/internal/strict"
	"fdbfifo/layer"
)

// inputError is a fault in the input, at a line counted from 1.
type inputError struct {
	Line int
	Err  error
}

func (e *inputError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *inputError) Unwrap() error { return e.Err }

// source yields the messages of an input one by one and io.EOF after the last. A fault is an *inputError; any
// other error is the reader's.
type source interface {
	next() (layer.Message, int, error) // the message and the line where it begins
}

// sourceOptions say how an input becomes messages.
type sourceOptions struct {
	format       string // "csv" or "jsonl"
	groupField   string // "" = all go to group
	group        string
	dedupID      string // of a single message
	dedupField   string // "" = there is none
	headerFields []headerField
	// Of every message.
	headers map[string]string
	delay   time.Duration
	joins   bool
	atOnce  bool
	alone   bool
	tenant  string
}

// headerField is a header whose value a field of the record has.
type headerField struct{ name, field string }

// complete adds the values that every message has.
func (o *sourceOptions) complete(m layer.Message) layer.Message {
	m.Headers, m.Delay, m.AtOnce = o.headers, o.delay, o.atOnce
	m.Alone, m.Tenant, m.JoinWhenDue = o.alone, o.tenant, o.joins
	return m
}

func newSource(r io.Reader, o sourceOptions) (source, error) {
	in, err := utf8Text(r)
	if err != nil {
		return nil, err
	}
	if o.format == "csv" {
		return newCSVSource(in, o)
	}
	return &jsonSource{r: in, o: o}, nil
}

// errWide says that a text has two or four bytes for each character.
var errWide = errors.New("this is UTF-16 or UTF-32, and UTF-8 is wanted (iconv -f UTF-16 -t UTF-8 converts it)")

// utf8Text returns a reader of a text in UTF-8, without the byte order mark with which some programs begin a file.
// Another encoding that shows in the first bytes is refused, with an *inputError.
func utf8Text(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	// This must wait for two bytes only: a stream may have one short line, and then nothing for a long time.
	begin, err := in.Peek(2)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case string(begin) == "\xff\xfe", string(begin) == "\xfe\xff", bytes.Contains(begin, []byte{0}):
		return nil, &inputError{1, errWide}
	case string(begin) == "\xef\xbb":
		if mark, err := in.Peek(3); err == nil && string(mark) == "\ufeff" {
			_, err = in.Discard(3)
			return in, err
		}
	}
	return in, nil
}

// errLineEnds names the line ends of an old Macintosh, with which a file would be one line.
var errLineEnds = errors.New("there is a carriage return without a line feed: a line must end with LF or CR LF " +
	"(tr '\\r' '\\n' converts a file), and a CSV field with a carriage return must stand between quotation marks")

// loneReturn reports whether a record has a carriage return outside of quotation marks that ends no line.
func loneReturn(record []byte) bool {
	quoted := false
	for i, c := range record {
		switch {
		case c == '"':
			quoted = !quoted
		case c == '\r' && !quoted && (i+1 == len(record) || record[i+1] != '\n'):
			return true
		}
	}
	return false
}

// maxRecord bounds one record of an input: a body of the largest size, and 1,024 bytes for the rest of the line.
// Without a bound a single open quotation mark would read the rest of a file into memory.
const maxRecord = layer.MaxBodySize + 1024 // bytes

var errLongRecord = fmt.Errorf("the record has more than %d bytes, the most for a message: is a quotation mark open?",
	layer.MaxBodySize)

// longRecord returns the error for a record that is too long. returns says that the record has carriage returns that
// may be line ends.
func longRecord(returns bool) error {
	if returns {
		return fmt.Errorf("%w; or %w", errLongRecord, errLineEnds)
	}
	return errLongRecord
}

// fields are the values of the fields that the flags name. "" = the record has no such field.
type fields struct {
	group   string
	dedupID string
	headers []string // of headerFields, in that order
}

// message completes a message, and checks it for what every queue refuses; body is copied.
func (o *sourceOptions) message(line int, of fields, body []byte) (layer.Message, error) {
	group := of.group
	m := o.complete(layer.Message{Group: o.group, Body: bytes.Clone(body), DedupID: of.dedupID})
	if len(o.headerFields) > 0 {
		m.Headers = maps.Clone(m.Headers)
	}
	for i, value := range of.headers {
		if value == "" {
			continue
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[o.headerFields[i].name] = value
	}
	if o.groupField != "" {
		if group == "" {
			return m, &inputError{line, fmt.Errorf("field %q, the group, is empty", o.groupField)}
		}
		m.Group = group
	}
	if err := m.Check(); err != nil {
		return m, &inputError{line, err}
	}
	return m, nil
}

// maxColumns bounds the names of columns that an error repeats.
const maxColumns = 200 // columns of the screen

// csvSource reads records under a header line. The body of a message is the record as it stands in the file.
type csvSource struct {
	o     sourceOptions
	raw   *tape
	csv   *csv.Reader
	group int // the column; -1 = none
	dedup int // the column; -1 = none
	// headers are the columns of headerFields.
	headers []int
}

func newCSVSource(in io.Reader, o sourceOptions) (*csvSource, error) {
	s := &csvSource{o: o, raw: &tape{r: in}, group: -1, dedup: -1, headers: make([]int, len(o.headerFields))}
	s.csv = csv.NewReader(s.raw)
	s.csv.ReuseRecord = true
	header, err := s.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, &inputError{1, errors.New("there is no header line with the names of the columns")}
	}
	// The first bytes of UTF-16 show it only if they are a mark or the text begins with a Latin letter.
	if line, _, _ := bytes.Cut(s.raw.held, []byte("\n")); bytes.IndexByte(line, 0) >= 0 {
		return nil, &inputError{1, errWide}
	}
	if errors.Is(err, errLongRecord) {
		return nil, &inputError{1, longRecord(loneReturn(s.raw.held))}
	}
	if err != nil {
		return nil, csvError(err)
	}
	if loneReturn(trimRecord(s.raw.cut(s.csv.InputOffset()))) {
		return nil, &inputError{1, errLineEnds}
	}
	type column struct {
		name   string
		column *int
	}
	wanted := []column{{o.groupField, &s.group}, {o.dedupField, &s.dedup}}
	for i, h := range o.headerFields {
		wanted = append(wanted, column{h.field, &s.headers[i]})
	}
	for _, field := range wanted {
		if field.name == "" {
			continue
		}
		switch *field.column = slices.Index(header, field.name); {
		case *field.column < 0:
			there := oneLine([]byte(strings.Join(header, ", ")), maxColumns)
			return nil, &inputError{1, fmt.Errorf("there is no column %q; there are %s", field.name, there)}
		case slices.Contains(header[*field.column+1:], field.name):
			return nil, &inputError{1, fmt.Errorf("the column %q is there twice: rename one of them", field.name)}
		}
	}
	return s, nil
}

func (s *csvSource) next() (layer.Message, int, error) {
	record, err := s.csv.Read()
	if errors.Is(err, errLongRecord) {
		return layer.Message{}, 0, &inputError{s.raw.lines + 1, longRecord(loneReturn(s.raw.held))}
	}
	if err != nil {
		return layer.Message{}, 0, csvError(err)
	}
	line, _ := s.csv.FieldPos(0)
	body := trimRecord(s.raw.cut(s.csv.InputOffset()))
	if loneReturn(body) {
		return layer.Message{}, 0, &inputError{line, errLineEnds}
	}
	at := func(column int) string {
		if column < 0 {
			return ""
		}
		return record[column]
	}
	of := fields{group: at(s.group), dedupID: at(s.dedup)}
	for _, column := range s.headers {
		of.headers = append(of.headers, at(column))
	}
	m, err := s.o.message(line, of, body)
	return m, line, err
}

// trimRecord cuts off the blank lines before a record and its line end, as csv.Reader takes them: any other carriage
// return belongs to a field.
func trimRecord(b []byte) []byte {
	for {
		rest, ok := bytes.CutPrefix(b, []byte("\n"))
		if !ok {
			rest, ok = bytes.CutPrefix(b, []byte("\r\n"))
		}
		if !ok {
			return bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		}
		b = rest
	}
}

// csvError puts the reader's errors in this package's form.
func csvError(err error) error {
	var parse *csv.ParseError
	if !errors.As(err, &parse) {
		return err
	}
	if errors.Is(err, csv.ErrFieldCount) {
		return &inputError{parse.Line, errors.New("the record has more or fewer fields than the header")}
	}
	err = fmt.Errorf("column %d: %w", parse.Column, parse.Err)
	if parse.StartLine != parse.Line {
		err = fmt.Errorf("%w, in a record that begins at line %d", err, parse.StartLine)
	}
	return &inputError{parse.Line, err}
}

// tape keeps the bytes that were read from r and not yet cut off.
type tape struct {
	r     io.Reader
	held  []byte
	start int64 // the offset of held in the input
	lines int   // that were cut off
}

func (t *tape) Read(p []byte) (int, error) {
	if len(t.held) > maxRecord {
		return 0, errLongRecord
	}
	n, err := t.r.Read(p)
	t.held = append(t.held, p[:n]...)
	return n, err
}

// cut returns what lies before the offset end; it is valid until the next read.
func (t *tape) cut(end int64) []byte {
	n := int(end - t.start)
	piece := t.held[:n]
	t.lines += bytes.Count(piece, []byte{'\n'})
	if rest := t.held[n:]; len(rest) == 0 {
		t.held = t.held[:0:0]
	} else {
		t.held = rest
	}
	t.start = end
	return piece
}

// jsonSource reads one JSON object a line; blank lines are skipped. The body of a message is the line.
type jsonSource struct {
	r    *bufio.Reader
	o    sourceOptions
	line int
	buf  []byte
}

func (s *jsonSource) next() (layer.Message, int, error) {
	for {
		line, err := s.readLine()
		if err != nil {
			return layer.Message{}, 0, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		of, err := s.fields(line)
		if err != nil && bytes.Contains(line, []byte{'\r'}) {
			err = fmt.Errorf("%w; %w", err, errLineEnds)
		}
		if err != nil {
			return layer.Message{}, 0, &inputError{s.line, err}
		}
		m, err := s.o.message(s.line, of, line)
		return m, s.line, err
	}
}

// readLine returns the next line; io.EOF only if there is none.
func (s *jsonSource) readLine() ([]byte, error) {
	s.line++
	s.buf = s.buf[:0]
	for {
		piece, err := s.r.ReadSlice('\n')
		s.buf = append(s.buf, piece...)
		switch {
		case len(s.buf) > maxRecord:
			return nil, &inputError{s.line, longRecord(bytes.IndexByte(s.buf, '\r') >= 0)}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(s.buf) > 0:
			return s.buf, nil
		case err != nil:
			return nil, err
		default:
			return s.buf, nil
		}
	}
}

// fields checks that line is a JSON object. It returns the fields that the flags name, as text.
func (s *jsonSource) fields(line []byte) (of fields, err error) {
	if !utf8.Valid(line) {
		return of, layer.ErrInvalidUTF8
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return of, fmt.Errorf("this is a JSON %s: an object is wanted", kind.Value)
		}
		return of, fmt.Errorf("this is no JSON object: %w", err)
	}
	if object == nil {
		return of, errors.New("this is null: a JSON object is wanted")
	}
	if err := s.o.checkTwice(line); err != nil {
		return of, err
	}
	if of.group, err = textField(object, s.o.groupField, "the group"); err != nil {
		return of, err
	}
	if of.dedupID, err = textField(object, s.o.dedupField, "the dedup id"); err != nil {
		return of, err
	}
	for _, h := range s.o.headerFields {
		value := ""
		if raw, there := object[h.field]; there && string(raw) != "null" {
			if value, err = textField(object, h.field, "header "+h.name); err != nil {
				return of, err
			}
		}
		of.headers = append(of.headers, value)
	}
	return of, nil
}

// checkTwice refuses a line that has a field twice which a flag names. A decoder takes the last of the two, and the
// message could go to another group than its author meant. The body is the line itself, so any other field may be there
// twice. line is a JSON object.
func (o *sourceOptions) checkTwice(line []byte) error {
	named := map[string]int{o.groupField: 0, o.dedupField: 0}
	for _, h := range o.headerFields {
		named[h.field] = 0
	}
	if delete(named, ""); len(named) == 0 {
		return nil
	}
	in := json.NewDecoder(bytes.NewReader(line))
	if _, err := in.Token(); err != nil {
		return err
	}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return err
		}
		if name, ok := name.(string); ok {
			n, is := named[name]
			if n > 0 {
				return fmt.Errorf("the field %q is there twice", name)
			}
			if is {
				named[name]++
			}
		}
	}
	return nil
}

// textField returns a field as text; "" if name is.
func textField(object map[string]json.RawMessage, name, what string) (string, error) {
	if name == "" {
		return "", nil
	}
	value, ok := object[name]
	if !ok {
		return "", fmt.Errorf("there is no field %q", name)
	}
	switch value[0] {
	case '"':
		if !strict.Whole(value) {
			return "", fmt.Errorf("field %q, %s, has half of a character: an escape from \\ud800 to \\udfff without "+
				"its other half", name, what)
		}
		var text string
		err := json.Unmarshal(value, &text)
		return text, err
	case '{', '[', 'n':
		return "", fmt.Errorf("field %q, %s, is %s: a string, a number or a boolean is wanted", name, what, oneLine(value, 30))
	}
	return string(value), nil
}

// jsonWords returns an error of package json without words of Go.
func jsonWords(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("it is a JSON %s, and an object is wanted", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("its field %q is a JSON %s, which does not fit", kind.Field, kind.Value)
	}
	return err
}
