package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"fdbfifo/kv"
)

// account is what one stage has done with one flight. All but Handled have to be 0.
type account struct {
	Flight     string `json:"flight"`
	State      string `json:"state"`
	Handled    int    `json:"handled"`
	OutOfOrder int    `json:"out_of_order"` // lines behind one of a later request
	Skipped    int    `json:"skipped"`      // requests without a line
	Doubled    int    `json:"doubled"`      // lines of a request beyond the first
}

// proof is what the books say.
type proof struct {
	Requests   int `json:"requests"`
	Flights    int `json:"flights"`
	OutOfOrder int `json:"out_of_order"`
	Skipped    int `json:"skipped"`
	Doubled    int `json:"doubled"`
	// Together is how many flights two stages or more had in hand at the same time.
	Together int       `json:"two_stages_at_once"`
	Accounts []account `json:"accounts"`
}

// prove reads the books of all stages. Each flight should have so many requests.
func prove(ctx context.Context, db kv.DB, flights []string, each int) (proof, error) {
	p := proof{Requests: len(flights) * each, Flights: len(flights)}
	for _, flight := range flights {
		books := make(map[string][]entry)
		for _, from := range states {
			for row, err := range kv.Rows(ctx, db, bookOf(from, flight)) {
				if err != nil {
					return p, err
				}
				var e entry
				if err := json.Unmarshal(row.Value, &e); err != nil {
					return p, fmt.Errorf("line of the book: %w", err)
				}
				books[from] = append(books[from], e)
			}
			a := judge(books[from], each)
			a.Flight, a.State = flight, from
			p.OutOfOrder, p.Skipped, p.Doubled = p.OutOfOrder+a.OutOfOrder, p.Skipped+a.Skipped, p.Doubled+a.Doubled
			p.Accounts = append(p.Accounts, a)
		}
		if together(books) {
			p.Together++
		}
	}
	return p, nil
}

// judge holds the lines of a stage about a flight to the order of the requests, of which there were so many.
func judge(lines []entry, each int) account {
	a := account{Handled: len(lines)}
	seen, latest := make(map[int]bool), 0
	for _, e := range lines {
		switch {
		case seen[e.Number]:
			a.Doubled++
		case e.Number < latest:
			a.OutOfOrder++
		}
		seen[e.Number], latest = true, max(latest, e.Number)
	}
	a.Skipped = each - len(seen)
	return a
}

// together reports whether two stages worked on the flight at the same time.
func together(books map[string][]entry) bool {
	type line struct {
		entry
		from string
	}
	var all []line
	for from, lines := range books {
		for _, e := range lines {
			all = append(all, line{e, from})
		}
	}
	slices.SortFunc(all, func(a, b line) int { return int(a.Begun - b.Begun) })
	ends := make(map[string]int64) // of each stage's lines so far
	for _, l := range all {
		for from, end := range ends {
			if from != l.from && l.Begun < end {
				return true
			}
		}
		ends[l.from] = max(ends[l.from], l.Ended)
	}
	return false
}

// err returns what is wrong.
func (p proof) err() error {
	if p.OutOfOrder+p.Skipped+p.Doubled > 0 {
		return fmt.Errorf("the books are wrong: %d out of order, %d skipped, %d doubled",
			p.OutOfOrder, p.Skipped, p.Doubled)
	}
	if p.Together == 0 {
		return fmt.Errorf("no flight had two stages in hand at once: the stages have excluded each other")
	}
	return nil
}

// String is a table: a row for each flight, and in it for each stage what was out of order, skipped and doubled.
func (p proof) String() string {
	var b strings.Builder
	b.WriteString("out of order, skipped, doubled\n")
	b.WriteString("flight")
	for _, from := range states {
		fmt.Fprintf(&b, "  %10s", from)
	}
	for i, a := range p.Accounts {
		if i%len(states) == 0 {
			fmt.Fprintf(&b, "\n%-6s", a.Flight)
		}
		fmt.Fprintf(&b, "  %10s", fmt.Sprintf("%d, %d, %d", a.OutOfOrder, a.Skipped, a.Doubled))
	}
	fmt.Fprintf(&b, "\n%d requests of %d flights through %d stages: %d out of order, %d skipped, %d doubled\n",
		p.Requests, p.Flights, len(states), p.OutOfOrder, p.Skipped, p.Doubled)
	fmt.Fprintf(&b, "%d flights had two stages in hand at once\n", p.Together)
	return b.String()
}
