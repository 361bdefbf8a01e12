package console

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fdbfifo/layer"
)

// functions are what the templates can call.
func (c *Console) functions() template.FuncMap {
	return template.FuncMap{
		"link": link, "esc": url.QueryEscape, "short": Short,
		"commas": func(n any) string { return Commas(number(n)) },
		"plural": func(n any, noun string) string { return Plural(number(n), noun) },
		"name":   displayed,
		"some": func(d time.Duration) string { // "" for nothing
			if d == 0 {
				return ""
			}
			return Short(d)
		},
		"ago": func(t time.Time) string {
			if t.IsZero() {
				return ""
			}
			return Short(max(0, c.o.Now().Sub(t)))
		},
		"stamp":  func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"iso":    func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"shape":  shape,
		"logsIn": c.logsIn,
		"causes": layer.BlockedCauses,
		"remedies": func(g layer.BlockedGroup) []remedy {
			all := groupRemedies(g.GroupInfo, g.Reasons)
			return all[:min(3, len(all))]
		},
		"operator":   func(r Role) bool { return r == Operator },
		"markFields": markFields,
		"one":        plainText, "itemName": itemName,
		"live": func(name string, v any) (template.HTML, error) {
			var b strings.Builder
			err := c.pages.ExecuteTemplate(&b, name+".live", v)
			return template.HTML(b.String()), err // a template has escaped it
		},
		"body": func(name string, v any) (template.HTML, error) {
			var b strings.Builder
			err := c.pages.ExecuteTemplate(&b, name, v)
			return template.HTML(b.String()), err // a template has escaped it
		},
		"navigate": func(p *page, path, text string) navigation {
			return navigation{Path: path, Text: text, Queue: p.Queue, Here: p.Name == path}
		},
		"act":         func(queue, group, back string, r remedy) act { return act{r, queue, group, back} },
		"dashed":      func(v any) string { return strings.ReplaceAll(fmt.Sprint(v), " ", "-") },
		"len64":       func(items []layer.Item) int64 { return int64(len(items)) },
		"summary":     summary,
		"alikes":      alikes,
		"blockedOf":   blockedOf,
		"label":       func(verb string) string { return remedyWords[verb].Label },
		"letterVerbs": func() []string { return []string{"redrive", "discard"} },
		"confirmDead": confirmDead,
		"hostOf":      hostOf,
	}
}

// navigation is a link to a page of the queue.
type navigation struct {
	Path, Text, Queue string
	Here              bool
}

// act is a remedy of a group on a page.
type act struct {
	R                  remedy
	Queue, Group, Back string
}

// counted is a cause and the number of groups that are blocked for it.
type counted struct {
	Cause, Words string
	N            int64
}

func summary(p layer.BlockedPage) (all []counted) {
	for _, c := range layer.BlockedCauses() {
		if n := p.Summary[c]; n > 0 {
			all = append(all, counted{Cause: string(c), Words: string(c), N: n})
		}
	}
	return all
}

// blockedOf is the page of blocked groups that a page shows.
func blockedOf(d any) layer.BlockedPage {
	switch d := d.(type) {
	case queueData:
		return d.Blocked
	case blockedData:
		return d.Page
	}
	return layer.BlockedPage{}
}

// confirmDead is the link to the confirmation of a verb for all dead letters that a filter chooses, or of a replay of
// the archived messages from the page on.
func confirmDead(verb, queue, back string, filter url.Values) string {
	query := url.Values{"verb": {verb}, "q": {queue}, "back": {back}}
	for _, name := range []string{"text", "from", "before"} {
		if value := filter.Get(name); value != "" {
			query.Set(name, value)
		}
	}
	if after := filter.Get("after"); after != "" && verb == "replay" { // the portions of a replay are in order
		query.Set("after", after)
	}
	if group := groupChosen(filter); group != nil {
		query.Set("g", *group)
	} else {
		query.Set("anygroup", "1")
		query.Set("all", "1")
	}
	return "confirm?" + query.Encode()
}

// hostOf returns the host and the process of an owner's default name, host:process:random.
func hostOf(owner string) string {
	parts := strings.Split(owner, ":")
	if len(parts) != 3 {
		return ""
	}
	if _, err := strconv.Atoi(parts[1]); err != nil {
		return ""
	}
	return "process " + parts[1] + " of host " + parts[0]
}

// link is a relative URL with a query of names and values. It leaves out empty values, except those of g, q and after:
// a group may be "".
func link(path string, pairs ...string) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if name, value := pairs[i], pairs[i+1]; value != "" || name == "g" || name == "q" || name == "after" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// displayed is a name as people see it: quoted if it is empty or not plain.
func displayed(name string) string {
	plain := func(r rune) bool { return r != ' ' && r != '"' && unicode.IsPrint(r) && r != utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		name = strconv.Quote(name)
	}
	return cutText(name, maxShownName)
}

// maxShownName is how much of a name a list shows, in runes.
const maxShownName = 80

func cutText(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// plainText returns a text of a program for a page, without control characters and cut to n runes.
func plainText(s string, n int) string {
	return cutText(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != '\n' {
			return utf8.RuneError
		}
		return r
	}, s), n)
}

// itemName returns a short name of an item, for people. The link has the whole id.
func itemName(id layer.ID) string { return fmt.Sprintf("%.8s@%d", id.Random, id.Index) }

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r) && r != '\n' && r != '\t' && r != '\r'
	})
}

// digest tells whether a body has changed since it was shown.
func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:8])
}

// shape is a sign for a cause or a status. It has a word too, so that a user need not tell colours apart.
func shape(s any) string {
	switch fmt.Sprint(s) {
	case "corrupt", "unreachable":
		return "✖"
	case "halted", "group halted", "dead":
		return "■"
	case "paused", "group paused", "queue paused":
		return "❚❚"
	case "delayed", "head failed", "failed":
		return "↻"
	case "held", "group held", "in flight", "granted":
		return "◆"
	case "expired", "lease expired":
		return "⌛"
	case "nobody waits", "turn":
		return "▲"
	}
	return "●"
}

// Commas writes a number with its thousands apart.
func Commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Plural returns "1 group" or "20 groups".
func Plural(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Commas(n) + " " + noun
}

// number is a number of a page's data, which may be an int.
func number(n any) int64 {
	if i, ok := n.(int); ok {
		return int64(i)
	}
	return n.(int64)
}

func plural[N int | int64](n N, noun string) string { return Plural(int64(n), noun) }

// Short writes a duration with few digits, for people.
func Short(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Short(-d)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}
