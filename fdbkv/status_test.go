package fdbkv_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/console"
	"fdbfifo/fdbkv"
	"fdbfifo/kv"
)

// TestStatus: what the cluster says of itself is one JSON document; a DB that is closed does not ask for it.
func TestStatus(t *testing.T) {
	db := open(t)
	document, err := db.Status(t.Context())
	require.NoError(t, err)
	var status struct {
		Client struct {
			Status struct {
				Available bool `json:"available"`
			} `json:"database_status"`
		} `json:"client"`
	}
	require.NoError(t, json.Unmarshal(document, &status))
	require.True(t, status.Client.Status.Available)
	require.NoError(t, db.Close())
	_, err = db.Status(t.Context())
	require.ErrorIs(t, err, fdbkv.ErrClosed)
}

// TestStatusOfAClusterThatIsSilent: the context bounds the wait.
func TestStatusOfAClusterThatIsSilent(t *testing.T) {
	db := unreachable(t)
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := db.Status(ctx)
	require.ErrorIs(t, err, ctx.Err())
}

// TestDatabasePageOnACluster: the console's page of the database shows a cluster's status. Each row that it can show is
// there once the cluster has measured itself, which takes seconds after its start.
func TestDatabasePageOnACluster(t *testing.T) {
	var db kv.DB = open(t)
	require.Implements(t, (*console.Statuser)(nil), db)
	row := regexp.MustCompile(`<tr><th scope="row" class="mono">[a-z_.]+</th><td`)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		// A console keeps the status for half a minute.
		c, err := console.New(console.Options{DB: db, Open: true, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/db?status=1", nil))
		assert.NoError(t, c.Close(context.Background()))
		require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
		require.Len(t, row.FindAllString(w.Body.String(), -1), 17, "%s", w.Body)
	}, 2*time.Minute, 500*time.Millisecond)
	if to := os.Getenv("FDBKV_STATUS"); to != "" {
		document, err := db.(*fdbkv.DB).Status(t.Context())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, document, 0o600))
	}
}
