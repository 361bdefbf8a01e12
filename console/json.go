package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"fdbfifo/layer"
)

// The JSON of the API is that of the command's --json: one set of structs for both.

// WriteJSON writes v as a line of JSON. It escapes all characters that are not printable, such as \u202e, so that the
// line cannot steer a terminal. The escapes are JSON's, so a program that reads the line gets the original texts.
func WriteJSON(w io.Writer, v any) error {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	safe := make([]byte, 0, line.Len())
	for _, r := range line.String() { // valid UTF-8: the encoder has seen to it
		switch {
		case r == '\n' || unicode.IsPrint(r):
			safe = utf8.AppendRune(safe, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			safe = fmt.Appendf(safe, `\u%04x\u%04x`, high, low)
		default:
			safe = fmt.Appendf(safe, `\u%04x`, r)
		}
	}
	_, err := w.Write(safe)
	return err
}

// JSONMark says why a group or a queue is paused or halted.
type JSONMark struct {
	Status string    `json:"status"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// JSONReason is a reason why something is not delivered.
type JSONReason struct {
	Cause  string    `json:"cause"`
	Text   string    `json:"text"`
	Count  int64     `json:"count,omitempty"`
	More   bool      `json:"more,omitempty"`
	Owner  string    `json:"owner,omitempty"`
	Token  int64     `json:"token,omitempty"`
	LeftMS int64     `json:"left_ms,omitempty"`
	Error  string    `json:"error,omitempty"`
	Mark   *JSONMark `json:"mark,omitempty"`
	// Where is the template of the claim, delay or mark that the reason is about.
	Where layer.Template `json:"where,omitempty"`
	Since *time.Time     `json:"since,omitempty"` // when a claim was made
}

// JSONGroup is a group.
type JSONGroup struct {
	Group  string `json:"group"`
	Status string `json:"status"`
	// Where is the template of the claim, or of the mark, that keeps the group.
	Where layer.Template `json:"where,omitempty"`
	// Hold is the id of the head if the claim is of the head alone.
	Hold        string       `json:"hold,omitempty"`
	Depth       int64        `json:"depth"`
	More        bool         `json:"more,omitempty"`
	Head        string       `json:"head,omitempty"`
	HeadAgeMS   int64        `json:"head_age_ms"`
	Attempts    int          `json:"attempts"`
	LastError   string       `json:"last_error,omitempty"`
	Owner       string       `json:"owner,omitempty"`
	Token       int64        `json:"token,omitempty"`
	Outstanding int          `json:"outstanding"`
	LeftMS      int64        `json:"left_ms"`
	Mark        *JSONMark    `json:"mark,omitempty"`
	Cause       string       `json:"cause,omitempty"`
	Reasons     []JSONReason `json:"reasons,omitempty"`
	Since       *time.Time   `json:"since,omitempty"`
}

// JSONOfMark is a mark as JSON; nil for nil.
func JSONOfMark(m *layer.Mark) *JSONMark {
	if m == nil {
		return nil
	}
	return &JSONMark{Status: string(m.Status), By: m.By, Reason: m.Reason, Since: m.Since.UTC()}
}

// JSONOfReasons is reasons as JSON.
func JSONOfReasons(reasons []layer.Reason) (all []JSONReason) {
	for _, r := range reasons {
		all = append(all, JSONReason{
			Cause: string(r.Cause), Text: r.String(), Count: r.Count, More: r.More, Owner: r.Owner, Token: r.Token,
			LeftMS: r.Left.Milliseconds(), Error: r.Err, Mark: JSONOfMark(r.Mark), Where: r.Where, Since: utc(r.Since),
		})
	}
	return all
}

// JSONOfGroup is a group as JSON.
func JSONOfGroup(g layer.GroupInfo) JSONGroup {
	hold := ""
	if g.Hold != (layer.ID{}) {
		hold = g.Hold.String()
	}
	return JSONGroup{
		Hold: hold, Group: g.Group, Status: string(g.Status), Depth: g.Depth, HeadAgeMS: g.HeadAge.Milliseconds(),
		Attempts: g.Attempts, LastError: g.LastError, Owner: g.Owner, Token: g.Token, Outstanding: g.Outstanding,
		LeftMS: g.Left.Milliseconds(), Mark: JSONOfMark(g.Mark), Where: g.Where,
	}
}

// JSONOfBlocked is a blocked group as JSON.
func JSONOfBlocked(g layer.BlockedGroup) JSONGroup {
	j := JSONOfGroup(g.GroupInfo)
	j.More, j.Cause, j.Reasons = g.More, string(g.Cause), JSONOfReasons(g.Reasons)
	j.Since = utc(g.Since)
	return j
}

// utc is a time for JSON; nil if the time is not known.
func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// JSONStats is the figures of a queue.
type JSONStats struct {
	Queue         string    `json:"queue"`
	Paused        *JSONMark `json:"paused,omitempty"`
	Depth         int64     `json:"depth"`
	InFlight      int64     `json:"in_flight"`
	Delayed       int64     `json:"delayed"`
	ReadyGroups   int64     `json:"ready_groups"`
	BusyGroups    int64     `json:"busy_groups"`
	HeldGroups    int64     `json:"held_groups"`
	DelayedGroups int64     `json:"delayed_groups"`
	FailingGroups int64     `json:"failing_groups"`
	LongestHoldMS int64     `json:"longest_hold_ms"`
	Waiting       int64     `json:"waiting_handles"`
	ClocksApartMS int64     `json:"clocks_apart_ms,omitempty"` // of processes that have just written
	PausedGroups  int64     `json:"paused_groups"`
	HaltedGroups  int64     `json:"halted_groups"`
	OldestReadyMS int64     `json:"oldest_ready_ms"`
	OldestHeadMS  int64     `json:"oldest_head_ms"`
	Enqueued      int64     `json:"enqueued"`
	Duplicates    int64     `json:"duplicates"`
	Received      int64     `json:"received"`
	Acked         int64     `json:"acked"`
	Nacked        int64     `json:"nacked"`
	Expired       int64     `json:"expired"`
	Taken         int64     `json:"taken"`
	DeadLettered  int64     `json:"dead_lettered"`
	Redriven      int64     `json:"redriven"`
	Discarded     int64     `json:"discarded"`
	Dead          int64     `json:"dead"`
	Cancelled     int64     `json:"cancelled"`
	Purged        int64     `json:"purged"`
	PastRetention int64     `json:"past_retention"`
	Forced        int64     `json:"forced"`
	// Views has the ready lanes of each view, in a queue with facets.
	Views []JSONView `json:"views,omitempty"`
}

// JSONView is the figures of a view.
type JSONView struct {
	View       string `json:"view"`
	ReadyLanes int64  `json:"ready_lanes"`
}

// JSONOfStats is the figures of a queue as JSON.
func JSONOfStats(queue string, st layer.Stats) JSONStats {
	j := JSONStats{
		Queue: queue, Paused: JSONOfMark(st.Paused), Depth: st.Depth, InFlight: st.InFlight, Delayed: st.Delayed,
		Duplicates: st.Duplicates, ReadyGroups: st.ReadyGroups, BusyGroups: st.BusyGroups,
		HeldGroups: st.HeldGroups, DelayedGroups: st.DelayedGroups, FailingGroups: st.FailingGroups,
		LongestHoldMS: st.LongestHold.Milliseconds(), Waiting: st.WaitingHandles, PausedGroups: st.PausedGroups,
		HaltedGroups: st.HaltedGroups, OldestReadyMS: st.OldestReady.Milliseconds(),
		OldestHeadMS: st.OldestHead.Milliseconds(), Enqueued: st.Enqueued, Received: st.Received, Acked: st.Acked,
		Nacked: st.Nacked, Expired: st.Expired, Taken: st.Taken, DeadLettered: st.DeadLettered,
		Redriven: st.Redriven, Discarded: st.Discarded, Dead: st.Dead, Cancelled: st.Cancelled, Purged: st.Purged,
		PastRetention: st.PastRetention, Forced: st.Forced, ClocksApartMS: st.ClocksApart.Milliseconds(),
	}
	for _, v := range st.Views {
		j.Views = append(j.Views, JSONView(v))
	}
	return j
}
