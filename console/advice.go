package console

import (
	"strings"

	"fdbfifo/layer"
)

// advice is a remedy without a button: a sentence, and a command to copy or a page.
type advice struct {
	Text, Command string
	Path, Words   string // of a link
}

// adviceOn has the advice for each cause. work: start a worker. page is a page of the queue.
var adviceOn = map[layer.Cause]struct {
	text        string
	work        bool
	page, words string
}{
	layer.CauseGroupHeld:    {text: "Look at HOLDER first: a release does not stop its handler."},
	layer.CauseInFlight:     {text: "Look at HOLDER first: a release does not stop its handler."},
	layer.CauseLeaseExpired: {text: "Whoever held the group is gone, and no worker takes over: start one.", work: true},
	layer.CauseNobodyWaits: {
		text: "No worker waits for a group: start one, or wait for one that is busy.", work: true,
	},
	layer.CauseTurn: {
		text: "More workers shorten the wait; with the schedule round_robin a group that was served goes to the back.",
		work: true, page: "config", words: "schedule",
	},
	layer.CauseHeadDelayed: {text: "It waits by design: the message was enqueued with a delay."},
	layer.CauseItemDelayed: {text: "It waits by design: the message was enqueued with a delay."},
	layer.CauseRateLimited: {
		text: "It waits by design: the rate of the group is used up.", page: "config", words: "change the rate",
	},
	layer.CauseQueueRateLimited: {
		text: "It waits by design: the rate of the queue is used up.", page: "config", words: "change the rate",
	},
	layer.CauseGranted: {text: "There is nothing to do: it ends within two seconds."},
	layer.CauseCorrupt: {text: "Have the queue checked before anything is removed.", page: "check", words: "check"},
	layer.CauseUnreachable: {
		text: "This is a fault of fdbfifo: please report it, with what a check says. " +
			"Pause the group and resume it: then it is found again.", page: "check", words: "check",
	},
}

// advices returns the advice for the reasons of a group, each text once. The page shows it in addition to the remedies.
func advices(queue string, g layer.GroupInfo, reasons []layer.Reason) (all []advice) {
	seen := map[string]bool{}
	for _, r := range reasons {
		on := adviceOn[r.Cause]
		holder := hostOf(g.Owner)
		if on.text == "" || seen[on.text] || holder == "" && strings.Contains(on.text, "HOLDER") {
			continue
		}
		seen[on.text] = true
		a := advice{Text: strings.ReplaceAll(on.text, "HOLDER", holder), Words: on.words}
		if on.work {
			a.Command = "fdbfifo work --queue " + shellName(queue) + " --exec COMMAND"
		}
		if on.page != "" {
			a.Path = link(on.page, "q", queue)
		}
		all = append(all, a)
	}
	return all
}

// shellName returns a name as a shell reads it, or NAME if the name would need quotes.
func shellName(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return name
	}
	return "NAME"
}
