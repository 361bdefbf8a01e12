package console

import (
	"fmt"
	"slices"

	"fdbfifo/layer"
)

// advice is what somebody can do about a cause elsewhere than with a button: a sentence, and a command to copy or a
// page.
type advice struct {
	Text, Command string
	Path, Words   string // of a link
}

// advices are what to do about the reasons of a group, each cause once, beside the remedies.
func advices(queue string, g layer.GroupInfo, reasons []layer.Reason) (all []advice) {
	work := "fdbfifo work --queue " + quoted(queue) + " --exec COMMAND"
	seen := map[layer.Cause]bool{}
	for _, r := range reasons {
		if seen[r.Cause] {
			continue
		}
		seen[r.Cause] = true
		switch r.Cause {
		case layer.CauseGroupHeld, layer.CauseInFlight:
			if where := hostOf(g.Owner); where != "" {
				all = append(all, advice{Text: "Look at " + where + " first: a release does not stop its handler."})
			}
		case layer.CauseLeaseExpired:
			all = append(all, advice{
				Text: "Whoever held the group is gone, and no worker takes over: start one.", Command: work,
			})
		case layer.CauseNobodyWaits:
			all = append(all, advice{
				Text: "No worker waits for a group: start one, or wait for one that is busy.", Command: work,
			})
		case layer.CauseTurn:
			all = append(all, advice{
				Text: fmt.Sprintf("Ready groups before it: %s. More workers shorten the wait; with the schedule round_robin "+
					"a group that was served goes to the back.", Commas(r.Count)),
				Command: work, Path: link("config", "q", queue), Words: "schedule",
			})
		case layer.CauseHeadDelayed, layer.CauseItemDelayed:
			all = append(all, advice{Text: "It waits by design: the message was enqueued with a delay."})
		case layer.CauseRateLimited, layer.CauseQueueRateLimited:
			all = append(all, advice{
				Text: "It waits by design: a rate is used up.", Path: link("config", "q", queue), Words: "change the rate",
			})
		case layer.CauseGranted:
			all = append(all, advice{Text: "There is nothing to do: it ends within two seconds."})
		case layer.CauseCorrupt:
			all = append(all, advice{
				Text: "Have the queue checked before anything is removed.", Path: link("check", "q", queue), Words: "check",
			})
		case layer.CauseUnreachable:
			all = append(all, advice{
				Text: "This is a fault of fdbfifo: please report it, with what a check says.",
				Path: link("check", "q", queue), Words: "check",
			})
		}
	}
	return all
}

// quoted is a name as a shell takes it.
func quoted(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	if name != "" && !slices.ContainsFunc([]rune(name), func(r rune) bool { return !plain(r) }) {
		return name
	}
	return "NAME"
}
