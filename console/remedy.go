package console

import (
	"encoding/json"
	"strconv"

	"fdbfifo/layer"
)

// remedy is an action that an operator can take on a blocked group. Its fields carry the state that the page has shown.
// If the state has changed since, the action does nothing.
type remedy struct {
	Verb    string
	Label   string
	Hint    string
	Fields  []field // the action's fields besides queue and group
	Confirm bool    // goes over a page that says what will happen
}

type field struct{ Name, Value string }

// remediesOf are the verbs that fit a cause, the best first.
var remediesOf = map[layer.Cause][]string{
	layer.CauseQueuePaused:  {"resume-queue"},
	layer.CauseGroupPaused:  {"resume"},
	layer.CauseGroupHalted:  {"edit", "resume", "skip", "purge"},
	layer.CauseDelayed:      {"retry", "edit", "skip", "pause"},
	layer.CauseHeadFailed:   {"edit", "skip", "pause"},
	layer.CauseFailed:       {"edit", "skip", "pause"},
	layer.CauseGroupHeld:    {"pause", "release", "release-count"},
	layer.CauseInFlight:     {"pause", "release", "release-count"},
	layer.CauseLeaseExpired: {"release-count", "release"},
	layer.CauseHeadDelayed:  {"retry", "cancel"},
	layer.CauseItemDelayed:  {"retry", "cancel"},
	layer.CauseCorrupt:      {"cancel", "purge"},
	layer.CauseTurn:         {"pause"},
	layer.CauseNobodyWaits:  {"pause"},
	layer.CauseReady:        {"pause"},
	layer.CauseRateLimited:  {"pause"},
	layer.CauseUnreachable:  {"pause"},
	layer.CauseEmpty:        {"pause"},
}

var remedyWords = map[string]remedy{
	"resume-queue":  {Label: "Resume the queue", Hint: "all groups are delivered again"},
	"pause-queue":   {Label: "Pause the queue", Hint: "nothing is delivered until it is resumed"},
	"resume":        {Label: "Resume", Hint: "the group is delivered again; a halted one begins with its head"},
	"retry":         {Label: "Retry now", Hint: "ends the delay"},
	"retry-alike":   {Label: "Retry all of these", Hint: "ends their delays, at most 1,000 at a time", Confirm: true},
	"pause":         {Label: "Pause", Hint: "keeps the group from all workers; a claim may end first"},
	"edit":          {Label: "Edit the head", Hint: "changes the body of the first message"},
	"skip":          {Label: "Set the head aside", Hint: "moves the first message to the dead letters", Confirm: true},
	"cancel":        {Label: "Cancel the head", Hint: "removes the first message for good", Confirm: true},
	"purge":         {Label: "Purge", Hint: "removes all messages of the group for good", Confirm: true},
	"release":       {Label: "Release by force", Hint: "takes the group away; its handler continues", Confirm: true},
	"release-count": {Label: "Release, count the attempt", Hint: "the same, and counts an attempt", Confirm: true},
	"redrive":       {Label: "Redrive", Hint: "puts dead letters back to their old places", Confirm: true},
	"replay":        {Label: "Replay", Hint: "enqueues archived messages again, up to 1,000 at a time", Confirm: true},
	"discard":       {Label: "Discard", Hint: "removes dead letters for good", Confirm: true},
}

// groupRemedies returns the remedies for all reasons of a group, each once.
func groupRemedies(g layer.GroupInfo, reasons []layer.Reason) []remedy {
	var all []remedy
	seen := map[string]bool{}
	for _, reason := range reasons {
		for _, verb := range remediesOf[reason.Cause] {
			fields, fits := seenFields(verb, g)
			if seen[verb] || !fits {
				continue
			}
			seen[verb] = true
			r := remedyWords[verb]
			if verb == "retry" && reason.Cause != layer.CauseDelayed {
				r.Label = "Deliver now"
			}
			r.Verb, r.Fields = verb, fields
			all = append(all, r)
		}
	}
	return all
}

// seenFields returns the fields that tell an action what the operator has seen of the group. fits is false if the verb
// does not fit the group in that state.
func seenFields(verb string, g layer.GroupInfo) (fields []field, fits bool) {
	head := field{"head", ""}
	if g.Head != (layer.ID{}) {
		head.Value = g.Head.String()
	}
	switch verb {
	case "resume":
		return markFields(g.Mark), g.Mark != nil
	case "pause":
		return nil, g.Mark == nil
	case "release", "release-count":
		return append(laneFields(g), field{"token", strconv.FormatInt(g.Token, 10)}), g.Token != 0
	case "resume-queue":
		return nil, true
	case "edit", "cancel":
		return []field{{"id", head.Value}}, head.Value != "" && g.Status != layer.Held
	case "retry":
		if g.Where != nil {
			return laneFields(g), g.Status != layer.Held
		}
		return []field{head}, head.Value != "" && g.Status != layer.Held
	case "skip":
		return []field{head}, head.Value != "" && g.Status != layer.Held
	}
	return []field{head}, head.Value != ""
}

// laneFields returns the fields that say which claim or delay of a group was seen: that of a template, or of one
// message. No fields = that of the whole group.
func laneFields(g layer.GroupInfo) []field {
	switch {
	case g.Where != nil:
		return []field{{"where", templateText(g.Where)}}
	case g.Hold != layer.ID{}:
		return []field{{"hold", g.Hold.String()}}
	}
	return nil
}

// templateText is a template as a form carries it: as JSON, because a value may have any character.
func templateText(t layer.Template) string {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // a map of texts
	}
	return string(text)
}

// markFields returns the fields of a mark in a form.
func markFields(m *layer.Mark) []field {
	if m == nil {
		return nil
	}
	return []field{
		{"mark", string(m.Status)}, {"mark_by", m.By}, {"mark_reason", m.Reason},
		{"mark_since", strconv.FormatInt(m.Since.UnixMilli(), 10)},
	}
}
