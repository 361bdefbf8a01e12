package sqs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/internal/doors"
	"fdbfifo/kv"
)

const (
	jsonType     = "application/x-amz-json-1.0"
	formType     = "application/x-www-form-urlencoded"
	targetPrefix = "AmazonSQS."
	xmlHeader    = `<?xml version="1.0" encoding="UTF-8"?>`
	namespace    = "http://queue.amazonaws.com/doc/2012-11-05/"
)

// call is one request of a client.
type call struct {
	request string // its id
	json    bool   // or else the Query protocol
	asJSON  bool   // a Query request that asks for an answer in JSON
	action  string
	base    string // scheme and host by which the client has come
	path    string // of the request
	account string // of the client
	trace   string // the client's trace, which its messages carry
	queue   string // the name of the queue that it is about, for the log
	reading bool   // its body was begun to be read
	memory  *share // of its body; nil if it needs none
	room    *share // of its answer; nil if it needs none
	address string // of the client
	// client ends when the client has gone, or has ended its side of the connection.
	client context.Context
	// writable sets until when the answer can be written.
	writable func(t time.Time)
}

// ServeHTTP answers one request of a client. It implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{
		request: uuid.NewString(), base: s.base(r), path: s.path(r), account: s.options.Account,
		trace: r.Header.Get("X-Amzn-Trace-Id"), address: addressOf(r), writable: writeDeadline(w),
	}
	r = r.WithContext(kv.WithTrouble(r.Context(), s.troubles.Note))
	begun := time.Now()
	defer func() { c.memory.release(); c.room.release() }() // when the answer is sent
	answer, err := s.answer(w, r, c)
	if err != nil && !c.reading { // the rest of the body is discarded, without a wait for it
		_ = http.NewResponseController(w).SetReadDeadline(begun.Add(refusedIn))
	}
	if err != nil && errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		c.writable(time.Unix(1, 0)) // the client has gone; if not, it must not take an empty answer for success
		return
	}
	status, body := c.text(w, answer, err)
	answer = nil // the memory of it is free while the body is written
	if e := s.reserveText(context.WithoutCancel(r.Context()), c, body); e != nil {
		err = e
		status, body = c.text(w, nil, err)
	}
	c.write(w, status, body)
	s.log(c, status, err, time.Since(begun))
}

// answer reads the request, and executes it.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, c *call) (any, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	c.json = kind == jsonType
	c.asJSON = !c.json && r.Method == http.MethodGet && strings.HasPrefix(r.Header.Get("Accept"), "application/json")
	if err := checkHost(r); err != nil {
		return nil, err
	}
	if r.Method != http.MethodPost && (c.json || r.Method != http.MethodGet) {
		return nil, refuse(http.StatusMethodNotAllowed, "UnknownOperationException", "InvalidAction",
			"The method %s is not supported: use POST, or GET with the Query protocol.", r.Method)
	}
	signed, err := s.admit(r, kind)
	if err != nil {
		return nil, err
	}
	if c.json {
		c.action = strings.TrimPrefix(r.Header.Get("X-Amz-Target"), targetPrefix)
		if _, ok := operations[c.action]; !ok {
			c.action = ""
			return nil, refuse(http.StatusBadRequest, "UnknownOperationException", "InvalidAction", "")
		}
	}
	body, err := s.readBody(w, r, c)
	if err != nil {
		return nil, err
	}
	if err := signed.verify(r, body, c); err != nil {
		return nil, err
	}
	doors.AtWork(r)
	if c.json {
		if err := s.mayCall(c); err != nil {
			return nil, err
		}
		return s.call(r.Context(), c, body)
	}
	return s.answerQuery(r, c, kind, body)
}

// answerQuery executes a request of the Query protocol.
func (s *Server) answerQuery(r *http.Request, c *call, kind string, body []byte) (any, error) {
	text := r.URL.RawQuery
	if kind == formType {
		text += "&" + string(body)
	}
	if strings.Count(text, "&") > maxValues {
		return nil, malformed(errTooMany)
	}
	form, err := url.ParseQuery(text)
	if err != nil {
		return nil, malformed(err)
	}
	if err := checkParameters(form); err != nil {
		return nil, malformed(err)
	}
	action, ofQueue := form.Get("Action"), strings.Count(c.path, "/") > 1
	op, ok := operations[action]
	if !ok || ofQueue && (action == "CreateQueue" || action == "ListQueues") {
		if action == "" && ofQueue {
			return nil, errUnknownOperation
		}
		if action == "" {
			return nil, refuse(http.StatusBadRequest, "MissingAction", "MissingAction",
				"The request must contain the parameter Action.")
		}
		return nil, refuse(http.StatusBadRequest, "InvalidAction", "InvalidAction",
			"The action %s is not valid for this endpoint.", action)
	}
	c.action = action
	if limit := bodyLimit(action); int64(len(body)) > limit {
		return nil, tooLarge(limit)
	}
	if err := s.checkMethod(r, action); err != nil {
		return nil, err
	}
	if err := s.mayCall(c); err != nil {
		return nil, err
	}
	asked := newParams(form)
	request, err := json.Marshal(asked.tree(op.in))
	if err = errors.Join(*asked.bad, err); err != nil {
		return nil, malformed(err)
	}
	return s.call(r.Context(), c, request)
}

// text returns the status and the text of the answer, or of the error, and sets the header.
func (c *call) text(w http.ResponseWriter, answer any, err error) (status int, body []byte) {
	w.Header().Set("X-Amzn-Requestid", c.request)
	status = http.StatusOK
	if err == errUnknownOperation {
		c.asJSON = false
		status, body = errUnknownOperation.status, []byte("<UnknownOperationException/>\n")
	} else if err != nil {
		e := told(err)
		status = e.status
		if c.json { // the code of the Query protocol, which older clients look for
			w.Header().Set("X-Amzn-Query-Error", e.code+";"+e.fault())
		}
		body = c.failure(e)
	} else {
		body = c.success(answer)
	}
	switch {
	case c.json:
		w.Header().Set("Content-Type", jsonType)
	case c.asJSON:
		w.Header().Set("Content-Type", "application/json")
	default:
		w.Header().Set("Content-Type", "text/xml")
	}
	return status, body
}

func (e *apiError) fault() string {
	if e.senderFault() {
		return "Sender"
	}
	return "Receiver"
}

// marshal is json.Marshal without escapes for HTML, which make bodies long.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // of structs, maps and strings only
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func (c *call) success(answer any) []byte {
	op := operations[c.action]
	if c.json {
		if op.out == nil {
			return nil
		}
		return inJSON(answer)
	}
	if c.asJSON {
		members := map[string]any{"ResponseMetadata": map[string]any{"RequestId": c.request}}
		if op.out != nil {
			members[c.action+"Result"] = listed(op.out, membersOf(answer))
		}
		return marshal(map[string]any{c.action + "Response": members})
	}
	b := bytes.NewBuffer(make([]byte, 0, textBytes(answer)))
	fmt.Fprintf(b, `%s<%sResponse xmlns="%s">`, xmlHeader, c.action, namespace)
	if op.out != nil {
		before := b.Len()
		fmt.Fprintf(b, "<%sResult>", c.action)
		first := b.Len()
		for part := range parts(answer) { // lists of Query have no element around them
			writeMembers(b, op.out, membersOf(part))
		}
		if b.Len() > first {
			fmt.Fprintf(b, "</%sResult>", c.action)
		} else {
			b.Truncate(before)
			fmt.Fprintf(b, "<%sResult/>", c.action)
		}
	}
	fmt.Fprintf(b, "<ResponseMetadata><RequestId>%s</RequestId></ResponseMetadata></%sResponse>", c.request, c.action)
	return b.Bytes()
}

// membersOf returns the members of an answer without those that are null: lists that the JSON protocol wants to be
// there.
func membersOf(answer any) map[string]any {
	var members map[string]any
	d := json.NewDecoder(bytes.NewReader(marshal(answer)))
	d.UseNumber() // the text of a large float has an exponent
	if err := d.Decode(&members); err != nil {
		panic(err) // marshal made it
	}
	maps.DeleteFunc(members, func(_ string, v any) bool { return v == nil })
	return members
}

func (c *call) failure(e *apiError) []byte {
	if c.json {
		return marshal(map[string]string{"__type": e.shape, "message": e.text})
	}
	text := cmp.Or(e.queryText, e.text)
	if c.asJSON {
		return marshal(map[string]any{
			"Error":     map[string]any{"Type": e.fault(), "Code": e.code, "Message": text, "Detail": nil},
			"RequestId": c.request,
		})
	}
	var b strings.Builder
	fmt.Fprintf(&b, `%s<ErrorResponse xmlns="%s"><Error><Type>%s</Type><Code>%s</Code><Message>`,
		xmlHeader, namespace, e.fault(), e.code)
	_ = xml.EscapeText(&b, []byte(text)) // a Builder never fails
	b.WriteString("</Message><Detail/></Error><RequestId>" + c.request + "</RequestId></ErrorResponse>")
	return []byte(b.String())
}
