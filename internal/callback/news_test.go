package callback_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/callback"
)

// TestNews: the same error is news once in NewsAgain: one of the database by its code, another one by its text. The
// number of remembered errors is bounded.
func TestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n callback.News
		a, b := errors.New("a"), errors.New("b")
		for range 2 {
			require.True(t, n.Has(0, a))
			require.True(t, n.Has(0, b))
			require.True(t, n.Has(1510, a), "another error")
			require.False(t, n.Has(1510, b), "the same code")
			require.False(t, n.Has(0, errors.New("a")), "the same text")
			time.Sleep(callback.NewsAgain)
		}
		require.True(t, n.Has(0, a))
		for i := range 1001 {
			n.Has(0, fmt.Errorf("error %d", i))
		}
		require.True(t, n.Has(0, a), "it was forgotten")
	})
}
