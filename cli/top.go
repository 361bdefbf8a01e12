package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const topHelp = `Show a queue's figures and its blocked groups, and refresh them every few seconds, until q or Ctrl-C.
Keys: up and down, or k and j, scroll; space refreshes at once. --once prints the figures once, for scripts and logs.
It changes nothing.`

func newTopCmd(s *session) *cobra.Command {
	var once bool
	var every time.Duration
	c := &cobra.Command{
		Use:   "top [--once] [--every TIME]",
		Short: "Watch a queue: figures, rates, and which groups are blocked",
		Long:  topHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if every < minTopEvery {
				return usagef("--every is %s: %s or more", every, minTopEvery)
			}
			return s.withQueueOf(c.Context(), false, func(db kv.DB, q *layer.Queue) error {
				w := &watched{s: s, db: db, q: q}
				defer w.leave(c.Context())
				return s.top(c.Context(), w, once, every)
			})
		},
	}
	c.Flags().BoolVar(&once, "once", false, "print once, and end")
	c.Flags().DurationVar(&every, "every", 2*time.Second, "the `TIME` between two looks")
	return c
}

// topPatience is after how long without an answer the screen says so.
const topPatience = 2 * time.Second

// minTopEvery keeps a mistyped time from keeping the database busy.
const minTopEvery = 100 * time.Millisecond

// top is what the screen shows: view makes the screen of it, and nothing else does.
type top struct {
	queue   string
	now     time.Time
	stats   layer.Stats
	before  layer.Stats
	between time.Duration // from before to stats; 0 = there is no before
	blocked layer.BlockedPage
	err     error // of the last look; the figures are then older
	scroll  int   // rows of blocked groups above the first shown
}

// look is the answers to one look.
type topLook struct {
	at      time.Time
	stats   layer.Stats
	blocked layer.BlockedPage
	err     error
}

// looked returns the model after a look.
func (t top) looked(l topLook) top {
	if t.err = l.err; l.err != nil {
		return t
	}
	if !t.now.IsZero() {
		t.before, t.between = t.stats, l.at.Sub(t.now)
	}
	t.now, t.stats, t.blocked = l.at, l.stats, l.blocked
	t.scroll = min(t.scroll, max(0, len(t.blocked.Groups)-1))
	return t
}

// pressed returns the model after a key. quit = the key ends the command; anew = it asks for new figures.
func (t top) pressed(key byte) (next top, quit, anew bool) {
	switch key {
	case 'q', 3: // Ctrl-C
		return t, true, false
	case ' ', 'r':
		return t, false, true
	case 'j', 'B': // an arrow ends with a letter
		t.scroll = min(t.scroll+1, max(0, len(t.blocked.Groups)-1))
	case 'k', 'A':
		t.scroll = max(0, t.scroll-1)
	}
	return t, false, false
}

// view is the screen, at most height lines of at most width columns; height 0 = as many as there are, and no keys.
func (t top) view(width, height int) string {
	lines := t.head()
	last := min(len(t.blocked.Groups), t.scroll+t.fits(width, height))
	if len(t.blocked.Groups) > 0 {
		lines = append(lines, t.columns(width, "group", "messages", "since", "cause", "why")[0])
	}
	for i := t.scroll; i < last; i++ {
		lines = append(lines, t.row(width, t.blocked.Groups[i])...)
	}
	if height >= minTopKeys {
		for len(lines) < height-1 {
			lines = append(lines, "")
		}
		keys := "q ends   space refreshes"
		if n := len(t.blocked.Groups); t.scroll > 0 || last < n {
			more := ""
			if t.blocked.Next != nil {
				more = "+"
			}
			keys = fmt.Sprintf("%d–%d of %d%s   up and down scroll   %s", t.scroll+1, last, n, more, keys)
		}
		lines = append(lines[:height-1], keys)
	}
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	for i, line := range lines {
		lines[i] = oneLine([]byte(line), width)
	}
	return strings.Join(lines, "\n")
}

// minTopKeys is the height of a screen that has room to say what the keys do.
const minTopKeys = 12

// head is the lines above the groups.
func (t top) head() []string {
	rate := func(now, before int64) string {
		if t.between <= 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f", max(0, float64(now-before)/t.between.Seconds()))
	}
	st := t.stats
	if t.now.IsZero() {
		lines := []string{"fdbfifo top   " + display(t.queue), "no figures yet"}
		if t.err != nil {
			lines = append(lines, t.err.Error())
		}
		return lines
	}
	lines := []string{
		fmt.Sprintf("fdbfifo top   %s   %s", display(t.queue), t.now.UTC().Format(time.TimeOnly)+" UTC"),
		fmt.Sprintf("messages %s   in flight %s   dead %s   in/s %s   out/s %s", commas(st.Depth), commas(st.InFlight),
			commas(st.Dead), rate(st.Enqueued, t.before.Enqueued),
			rate(st.Acked+st.Taken, t.before.Acked+t.before.Taken)),
		fmt.Sprintf("groups   ready %s   held %s   failing %s   paused %s   halted %s", commas(st.ReadyGroups),
			commas(st.HeldGroups), commas(st.FailingGroups), commas(st.PausedGroups), commas(st.HaltedGroups)),
		fmt.Sprintf("oldest   ready %s   head %s   hold %s   waiting handles %s", short(st.OldestReady),
			short(st.OldestHead), short(st.LongestHold), commas(st.WaitingHandles)),
	}
	if t.err != nil {
		lines = append(lines, "NOT FRESH: "+t.err.Error())
	}
	lines = append(lines, "")
	return append(lines, strings.Split(blockedWords(t.blocked), "\n")...)
}

// fits is how many groups a screen shows at once.
func (t top) fits(width, height int) int {
	if height <= 0 {
		return len(t.blocked.Groups)
	}
	room := height - len(t.head()) - 1
	if height >= minTopKeys {
		room--
	}
	if t.narrow(width) {
		return max(1, room/2)
	}
	return max(1, room)
}

// within returns the model with no more scrolled away than there is below the screen.
func (t top) within(width, height int) top {
	t.scroll = max(0, min(t.scroll, len(t.blocked.Groups)-t.fits(width, height)))
	return t
}

// nameWidth is the columns of the groups' names.
func (t top) nameWidth() int {
	width := len("group")
	for _, g := range t.blocked.Groups {
		width = max(width, text.StringWidthWithoutEscSequences(oneLine([]byte(display(g.Group)), maxNameWidth)))
	}
	return width
}

// The columns of a row's figures, and the least columns for the reason in the same line. A reason with less room gets a
// line of its own.
const (
	topFigures = len(" messages    since  ") + 14 + len(" ")
	minTopWhy  = 60
)

func (t top) narrow(width int) bool { return width < t.nameWidth()+topFigures+minTopWhy }

// columns are the cells of a row, in one line or two.
func (t top) columns(width int, name, depth, since, cause, why string) []string {
	pad := strings.Repeat(" ", max(0, t.nameWidth()-text.StringWidthWithoutEscSequences(name)))
	line := fmt.Sprintf("%s%s %8s %8s  %-14s", name, pad, depth, since, cause)
	if t.narrow(width) {
		return []string{strings.TrimRight(line, " "), "    " + why}
	}
	return []string{line + " " + why}
}

func (t top) row(width int, g layer.BlockedGroup) []string {
	depth, since := commas(g.Depth), ""
	if g.More {
		depth += "+"
	}
	if !g.Since.IsZero() {
		since = short(max(0, t.now.Sub(g.Since)))
	}
	why := make([]string, len(g.Reasons))
	for i, r := range g.Reasons {
		why[i] = r.String()
	}
	name := oneLine([]byte(display(g.Group)), maxNameWidth)
	return t.columns(width, name, depth, since, string(g.Cause), strings.Join(why, "; "))
}

// watched is the queue that top shows.
type watched struct {
	s   *session
	db  kv.DB
	q   *layer.Queue
	own bool // q is not the command's: it was opened again
}

// look asks the queue. If the queue is gone, look asks the new queue of its name, if there is one.
func (w *watched) look(ctx context.Context, limit int) topLook {
	l := w.ask(ctx, limit)
	if !errors.Is(l.err, layer.ErrNoQueue) {
		return l
	}
	q, err := layer.Open(ctx, w.db, w.s.prefix(), w.q.Name(), w.s.queueOptions())
	if err != nil {
		return l
	}
	w.leave(ctx)
	w.q, w.own = q, true
	return w.ask(ctx, limit)
}

func (w *watched) ask(ctx context.Context, limit int) topLook {
	l := topLook{at: w.s.app.Now()}
	if l.stats, l.err = w.q.Stats(ctx, layer.StatsOptions{}); l.err == nil {
		l.blocked, l.err = w.q.Admin().Blocked(ctx, layer.BlockedOptions{Limit: limit})
	}
	return l
}

// leave closes the handle that was opened again. It has changed nothing, so an error does not matter.
func (w *watched) leave(ctx context.Context) {
	if w.own {
		_ = shut(ctx, w.q)
	}
}

// The screen's control sequences: another screen without a cursor, home and clear to the end of each line and below.
const (
	screenOn  = "\x1b[?1049h\x1b[?25l"
	screenOff = "\x1b[?25h\x1b[?1049l"
	home      = "\x1b[H"
	clearLine = "\x1b[K"
	clearRest = "\x1b[J"
)

func (s *session) top(ctx context.Context, w *watched, once bool, every time.Duration) (err error) {
	t := top{queue: w.q.Name()}
	width, _, ok := s.app.size(s.stdout)
	if once || !ok {
		l := w.look(ctx, layer.DefaultBlocked)
		if l.err != nil {
			return l.err
		}
		if !ok {
			width = maxWhyWidth
		}
		_, err := fmt.Fprintln(s.stdout, t.looked(l).view(width, 0))
		return err
	}
	keys := make(chan byte)
	if in, ok := s.stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		state, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return fmt.Errorf("read keys: %w", err)
		}
		defer func() { _ = term.Restore(int(in.Fd()), state) }()
		go readKeyboard(in, keys)
	}
	if _, err := io.WriteString(s.raw, screenOn); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(s.raw, screenOff) }()
	return s.topLoop(ctx, w, t, every, keys)
}

// readKeyboard sends what is pressed; it ends with the process.
func readKeyboard(in io.Reader, keys chan<- byte) {
	one := make([]byte, 1)
	for {
		if n, err := in.Read(one); err != nil || n == 0 {
			return
		}
		keys <- one[0]
	}
}

// topLoop shows looks until a key or the context ends it. The terminal's size is asked for with each screen.
func (s *session) topLoop(ctx context.Context, w *watched, t top, every time.Duration, keys <-chan byte) error {
	redraw := time.NewTicker(250 * time.Millisecond) // for a terminal that has another size now
	defer redraw.Stop()
	next := time.Now()
	// The terminal sends no Ctrl-C while keys are read one by one, so a look must not keep the loop waiting.
	ctx, cancel := context.WithCancel(ctx)
	looks, looking := make(chan topLook, 1), time.Time{} // zero = no look is under way
	defer func() {
		cancel()
		if !looking.IsZero() {
			<-looks
		}
	}()
	for {
		if now := time.Now(); looking.IsZero() && !now.Before(next) {
			looking = now
			go func() { looks <- w.look(ctx, layer.MaxBlocked) }()
		} else if waited := now.Sub(looking); !looking.IsZero() && waited >= topPatience {
			t.err = fmt.Errorf("no answer of the database for %s", short(waited))
		}
		if ctx.Err() != nil {
			return nil
		}
		width, height, _ := s.app.size(s.stdout)
		t = t.within(width, height)
		screen := strings.ReplaceAll(t.view(width, height), "\n", clearLine+"\r\n")
		if _, err := io.WriteString(s.raw, home+screen+clearLine+clearRest); err != nil {
			return err
		}
		select {
		case key := <-keys:
			var quit, anew bool
			if t, quit, anew = t.pressed(key); quit {
				return nil
			}
			if anew {
				next = time.Now()
			}
		case l := <-looks:
			looking = time.Time{} // first: the end waits for a look that is under way
			if ctx.Err() != nil {
				return nil
			}
			t, next = t.looked(l), time.Now().Add(every)
		case <-redraw.C:
		case <-ctx.Done():
			return nil
		}
	}
}
