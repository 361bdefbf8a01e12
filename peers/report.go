package main

import (
	"fmt"
	"image/color"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// markdown returns the figures as a table.
func markdown(w work, results []*result) string {
	var b strings.Builder
	b.WriteString("| queue | sent a second, one by one | in tens | handled a second | p50 ms | p99 ms " +
		"| lost | twice | out of order | two of a group at once |\n")
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.1f | %.1f | %d | %d | %d | %d |\n", r.Name, r.SendSingle,
			r.SendBatched, r.Handled, r.P50, r.P99, r.Missing, r.Doubled, r.OutOfOrder, r.Together)
	}
	b.WriteByte('\n')
	for _, r := range results {
		promise := "no order within a group"
		if r.Ordered {
			promise = "order, and one worker at a time, within a group"
		}
		fmt.Fprintf(&b, "- **%s**: %s; %s.\n", r.Name, r.What, promise)
	}
	fmt.Fprintf(&b, "\n%d callers and %d workers; %d messages one by one and %d in tens a round, of %d groups; "+
		"%d a second for %v for the times; medians of %d rounds.\n",
		w.callers, w.callers, w.single, w.batched, w.groups, w.rate, w.period, w.rounds)
	return b.String()
}

// insert puts a table into a page, between two lines.
func insert(file, table string) error {
	const begin, end = "<!-- figures -->\n", "<!-- end -->"
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s lacks a line %q or %q", file, strings.TrimSpace(begin), end)
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+table+"\n"+end+after), 0o644)
}

// colours are told apart by the colour-blind too.
var colours = []color.RGBA{
	{0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x72, 0xb2, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	{0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x00, 0x00, 0x00, 0xff},
}

// draw draws which share of the messages was in a handler's hand after which time.
func draw(file string, results []*result) error {
	p := plot.New()
	p.Title.Text = "from send to handler"
	p.X.Label.Text, p.Y.Label.Text = "milliseconds", "share of the messages"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 1
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, r := range results {
		var points plotter.XYs
		for k := 0; k <= 200 && len(r.times) > 0; k++ {
			q := float64(k) / 200
			points = append(points, plotter.XY{X: max(milliseconds(r.times, q), 0.1), Y: q})
		}
		if points == nil {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("draw %s: %w", r.Name, err)
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(r.Name, line)
	}
	return p.Save(18*vg.Centimeter, 11*vg.Centimeter, file)
}
