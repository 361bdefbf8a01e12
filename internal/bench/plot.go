package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// WriteMarkdown writes the points as a table.
func WriteMarkdown(w io.Writer, points []Point) error {
	var b strings.Builder
	b.WriteString("| claimers | items/s | conflicts a claim |\n|--:|--:|--:|\n")
	for _, p := range points {
		fmt.Fprintf(&b, "| %d | %.0f | %.3f |\n", p.Claimers, p.PerSecond, p.Conflicts)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// The drawing is by hand: two small line charts are less than any plotting library brings with it.
const (
	chartWidth, chartHeight = 420, 260
	marginLeft, marginTop   = 70, 60
	chartGap                = 80
)

const lineColour = "#0072b2"

// WriteSVG draws throughput and conflicts against the number of claimers, which is on a scale of powers of two.
func WriteSVG(w io.Writer, points []Point, caption string) error {
	var b strings.Builder
	width, height := 2*marginLeft+2*chartWidth+chartGap, marginTop+chartHeight+90
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	drawChart(&b, marginLeft, "items a second", points, func(p Point) float64 { return p.PerSecond })
	drawChart(&b, marginLeft+chartWidth+chartGap, "conflicts per claim", points, func(p Point) float64 { return p.Conflicts })
	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#555">%s</text>`+"\n</svg>\n", marginLeft, height-15, escapeXML(caption))
	_, err := io.WriteString(w, b.String())
	return err
}

func drawChart(b *strings.Builder, left int, title string, points []Point, value func(Point) float64) {
	top, most, last := 0.0, 0.0, 1
	for _, p := range points {
		most, last = max(most, value(p)), max(last, p.Claimers)
	}
	top = roundUp(most)
	x := func(n int) float64 {
		return float64(left) + chartWidth*math.Log2(float64(n))/max(1, math.Log2(float64(last)))
	}
	y := func(v float64) float64 { return marginTop + chartHeight*(1-v/top) }
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, marginTop-14, title)
	for i := range 5 {
		v := top * float64(i) / 4
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n",
			left, y(v), left+chartWidth, y(v), left-6, y(v)+4, v)
	}
	for _, p := range points {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(p.Claimers), marginTop+chartHeight+18, p.Claimers)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">claimers, a handle each</text>`+"\n", left+chartWidth/2, marginTop+chartHeight+38)
	var line []string
	for _, p := range points {
		line = append(line, fmt.Sprintf("%.1f,%.1f", x(p.Claimers), y(value(p))))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.Claimers), y(value(p)), lineColour)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), lineColour)
}

// roundUp is the next number of the form 1, 2, 4 or 8 times a power of ten: a scale with even quarters.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 4, 8} {
		if v <= f*unit {
			return f * unit
		}
	}
	return 10 * unit
}

func escapeXML(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
