package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// stages are those who write books.
var stages = []string{"pack", "ship"}

// entry is a line of a book: "7 pack-1", or "7 pack-2 again" if the order had come before, and was not deleted.
type entry struct {
	number int
	worker string
	again  bool
}

func (e entry) String() string {
	if e.again {
		return fmt.Sprintf("%d %s again\n", e.number, e.worker)
	}
	return fmt.Sprintf("%d %s\n", e.number, e.worker)
}

// parse reads a book.
func parse(book string) (all []entry, err error) {
	for line := range strings.Lines(book) {
		var e entry
		if n, _ := fmt.Sscan(line, &e.number, &e.worker); n != 2 {
			return nil, fmt.Errorf("line of a book: %q", line)
		}
		e.again = strings.HasSuffix(line, " again\n")
		all = append(all, e)
	}
	return all, nil
}

// proof is what the books say, of both stages together.
type proof struct {
	Orders     int `json:"orders"`
	Customers  int `json:"customers"`
	Missing    int `json:"missing"`      // orders without a line
	Doubled    int `json:"doubled"`      // lines of an order beyond the first, without the word again
	OutOfOrder int `json:"out_of_order"` // lines behind one of a later order of the customer
	Again      int `json:"again"`        // lines with the word again: those messages were in flight at a kill
}

// judge holds a book to the orders of its customer, of which there were so many.
func (p *proof) judge(lines []entry, each int) {
	seen, latest := make(map[int]bool), 0
	for _, e := range lines {
		switch {
		case e.again && seen[e.number]:
			p.Again++
			continue
		case seen[e.number]:
			p.Doubled++
		case e.number < latest:
			p.OutOfOrder++
		}
		seen[e.number], latest = true, max(latest, e.number)
	}
	for n := 1; n <= each; n++ {
		if !seen[n] {
			p.Missing++
		}
	}
}

// prove reads the books.
func prove(books string, customers []string, each int) (proof, error) {
	p := proof{Orders: len(customers) * each, Customers: len(customers)}
	for _, stage := range stages {
		for _, c := range customers {
			text, err := os.ReadFile(filepath.Join(books, stage, c))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return p, err
			}
			lines, err := parse(string(text))
			if err != nil {
				return p, err
			}
			p.judge(lines, each)
		}
	}
	return p, nil
}

// inFlight is how many messages may come again after a kill: if the server is killed, the ten of each of four workers.
// The writers of books mark each repeated delivery "again", whatever its reason. A server that delivers deleted
// messages, or keeps duplicates, is found because more of them come again.
const inFlight = 4 * 10

// err returns what is wrong after so many kills.
func (p proof) err(kills int) error {
	if p.Missing+p.Doubled+p.OutOfOrder > 0 {
		return fmt.Errorf("the books are wrong: %d missing, %d doubled, %d out of order",
			p.Missing, p.Doubled, p.OutOfOrder)
	}
	if p.Again > inFlight*kills {
		return fmt.Errorf("%d deliveries came again; after %d kills, %d may, unless a worker takes longer than %s",
			p.Again, kills, inFlight*kills, visibility)
	}
	return nil
}
