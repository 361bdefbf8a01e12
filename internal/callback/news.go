package callback

import (
	"sync"
	"time"
)

// News remembers which errors a user was told of, so that the user hears of the same one at most once in NewsAgain. A
// failure of the database may come again once a second, for hours, and to many goroutines. The zero value is ready.
type News struct {
	mu   sync.Mutex
	told map[same]time.Time // guarded by mu; when such an error was told last
}

// same names errors that are told together: those of the database with one code, others with one text.
type same struct {
	code int
	text string // "" with a code
}

const (
	// NewsAgain is how long the same error is not told again.
	NewsAgain = 10 * time.Second
	// mostTold is how many errors a News remembers. It forgets all when there are more.
	mostTold = 1000
)

// Has reports whether an error is news, and remembers it. It is not if the same error was news less than NewsAgain ago:
// an error of the database with the same code, or another error with the same text. code is that of the database; 0 =
// err is another error.
func (n *News) Has(code int, err error) bool {
	is := same{code: code}
	if code == 0 {
		is.text = err.Error()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if last, known := n.told[is]; known && now.Sub(last) < NewsAgain {
		return false
	}
	if len(n.told) >= mostTold || n.told == nil {
		n.told = make(map[same]time.Time)
	}
	n.told[is] = now
	return true
}
