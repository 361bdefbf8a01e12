package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/schollz/progressbar/v3"
)

// How often progress is shown: a terminal is redrawn often enough to look alive, a log gets few lines.
const (
	redrawEvery = 80 * time.Millisecond
	lineEvery   = 2 * time.Second
)

// progress shows on stderr how far a long piece of work has come. On a terminal it redraws a bar in place, with lines
// of detail below. Elsewhere it writes a line now and then, with the first detail. It is safe for concurrent use.
type progress struct {
	w     io.Writer
	size  func() (width, height int, ok bool)
	now   func() time.Time
	label string
	unit  string

	mu      sync.Mutex
	total   int64                    // guarded by mu; < 0 = unknown
	bar     *progressbar.ProgressBar // guarded by mu; nil if w is no terminal
	shown   time.Time                // guarded by mu
	drawn   int                      // lines of the block on the screen; guarded by mu
	details []string                 // guarded by mu
	closed  bool                     // guarded by mu
}

// newProgress begins to show label; total is in units, or negative if it is not known.
func (s *session) newProgress(label, unit string, total int64) *progress {
	p := &progress{
		w: s.stderr, now: s.app.Now, label: label, unit: unit, total: total, shown: s.app.Now(),
		size: func() (int, int, bool) { return s.app.size(s.stderr) },
	}
	if width, _, ok := p.size(); ok {
		p.shown = time.Time{}
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(io.Discard), // its text is drawn as a part of the block
			progressbar.OptionSetDescription(label),
			progressbar.OptionSetWidth(min(30, max(8, width-len(label)-56))),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString(unit+"s"),
			progressbar.OptionSetPredictTime(total > 0),
			progressbar.OptionThrottle(0),
			progressbar.OptionSetSpinnerChangeInterval(0), // else it draws in a goroutine of its own, not only in set
			progressbar.OptionSetTheme(progressbar.Theme{Saucer: "█", SaucerPadding: "░", BarStart: "", BarEnd: ""}),
		)
		p.bar.StartWithoutRender()
	}
	return p
}

// set says that n units are done. details are shown below the bar, as many as fit.
func (p *progress) set(n int64, details ...string) {
	if !p.mu.TryLock() { // lines are printed, perhaps to a pipe without a reader
		return
	}
	defer p.mu.Unlock()
	every := lineEvery
	if p.bar != nil {
		every = redrawEvery
	}
	if p.closed || p.now().Sub(p.shown) < every {
		return
	}
	p.shown = p.now()
	if p.bar == nil {
		p.line(n, details)
		return
	}
	if p.total >= 0 && n > p.total {
		// More came in while the work went on.
		p.total = n
		p.bar.ChangeMax64(n + 1)
	}
	// The bar writes to nothing, which cannot fail.
	_ = p.bar.Set64(n)
	p.details = details
	p.draw()
}

// line writes a line of its own, with the first detail.
func (p *progress) line(n int64, details []string) {
	of, detail := "", ""
	if p.total >= 0 {
		of = " of " + commas(max(n, p.total))
	}
	if len(details) > 0 {
		detail = "; " + details[0]
	}
	fmt.Fprintf(p.w, "fdbfifo: %s: %s%s %ss%s\n", p.label, commas(n), of, p.unit, detail)
}

// draw writes the block in one piece and leaves the cursor at its start.
func (p *progress) draw() {
	width, height, ok := p.size()
	if !ok {
		return
	}
	lines := append([]string{strings.TrimSpace(p.bar.String())}, p.details...)
	lines = lines[:min(len(lines), max(1, height-1))]
	var s strings.Builder
	for _, line := range lines {
		s.WriteString("\r\x1b[K" + text.Trim(line, width-1) + "\n")
	}
	// Clears the lines of an earlier, longer block.
	s.WriteString("\x1b[J")
	fmt.Fprintf(&s, "\x1b[%dA", len(lines))
	p.drawn = len(lines)
	io.WriteString(p.w, s.String())
}

// erase removes the block from the screen.
func (p *progress) erase() {
	if p.drawn > 0 {
		io.WriteString(p.w, "\r\x1b[J")
		p.drawn = 0
	}
}

// print calls fn, which writes whole lines to the terminal, with the block out of the way.
func (p *progress) print(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	redraw := p.drawn > 0
	p.erase()
	fn()
	if redraw {
		p.draw()
	}
}

// close takes the block off the screen. It may be called twice.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.closed = true
}
