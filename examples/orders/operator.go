package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"fdbfifo/layer"
)

// operator returns the pages that each process serves: its own health, and the operator's side of the queue.
//
//	GET  /healthz               200 while the database answers; "serving" says that this process has the folder's file
//	GET  /metrics               figures, as Prometheus reads them
//	GET  /admin/stats           the queue's figures as JSON
//	GET  /admin/dead            dead letters, the first hundred
//	POST /admin/redrive         dead letters go back to their places; {"text":"…"} chooses by reason
//	POST /admin/pause           no worker is given work; {"by":"…","reason":"…"}
//	POST /admin/resume
//
// A service would keep these from the public, and ask who calls. See routes for the web pages of other sites.
func (p *process) operator() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", p.health)
	mux.HandleFunc("GET /metrics", p.metrics)
	mux.HandleFunc("GET /admin/stats", p.stats)
	mux.HandleFunc("GET /admin/dead", p.dead)
	mux.HandleFunc("POST /admin/redrive", p.redrive)
	mux.HandleFunc("POST /admin/pause", p.pause)
	mux.HandleFunc("POST /admin/resume", p.resume)
	return mux
}

// health is the answer of /healthz.
type health struct {
	Serving bool `json:"serving"`
}

// health reads a single key, so that a probe each second costs nothing, and the answer proves that the database has
// answered.
func (p *process) health(w http.ResponseWriter, r *http.Request) {
	if _, _, err := p.shop.queue.Admin().Paused(r.Context()); err != nil {
		refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, health{Serving: p.db.Serves()})
}

func (p *process) stats(w http.ResponseWriter, r *http.Request) {
	stats, err := p.shop.queue.Stats(r.Context(), layer.StatsOptions{})
	if err != nil {
		refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, stats)
}

// metrics writes the figures that are worth an alert, or a graph.
func (p *process) metrics(w http.ResponseWriter, r *http.Request) {
	s, err := p.shop.queue.Stats(r.Context(), layer.StatsOptions{})
	if err != nil {
		refuse(w, r, err)
		return
	}
	for _, m := range []struct {
		kind, name string
		value      float64
	}{
		{"counter", "enqueued_total", float64(s.Enqueued)},
		{"counter", "acked_total", float64(s.Acked)},
		{"counter", "failed_total", float64(s.Nacked)},
		{"counter", "expired_total", float64(s.Expired)},  // leases that ended: workers that died, or hang
		{"gauge", "depth", float64(s.Depth)},              // messages
		{"gauge", "dead", float64(s.Dead)},                // dead letters: an operator must look
		{"gauge", "ready_groups", float64(s.ReadyGroups)}, // scale the workers by this
		{"gauge", "halted_groups", float64(s.HaltedGroups)},
		{"gauge", "oldest_head_seconds", s.OldestHead.Seconds()},
		{"counter", "conflicts_total", float64(p.shop.queue.Paths().Conflicts)}, // of this process
	} {
		fmt.Fprintf(w, "# TYPE orders_%s %s\norders_%[1]s %[3]g\n", m.name, m.kind, m.value)
	}
}

// deadOrder is a dead letter as the operator sees it.
type deadOrder struct {
	ID       string    `json:"id"` // of the message
	Customer string    `json:"customer"`
	Order    string    `json:"order"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`
}

func (p *process) dead(w http.ResponseWriter, r *http.Request) {
	page, err := p.shop.queue.Admin().DeadLetters(r.Context(), layer.DeadOptions{Bodies: true})
	if err != nil {
		refuse(w, r, err)
		return
	}
	all := []deadOrder{}
	for _, l := range page.Letters {
		all = append(all, deadOrder{l.ID.String(), l.ID.Group, string(l.Body), l.Reason, l.DeadLettered})
	}
	writeJSON(w, http.StatusOK, all)
}

func (p *process) redrive(w http.ResponseWriter, r *http.Request) {
	var want struct {
		Text string `json:"text"`
	}
	if !readJSON(w, r, &want) {
		return
	}
	report, err := p.shop.queue.Admin().Redrive(r.Context(), layer.DeadFilter{Text: want.Text}, layer.RedriveOptions{})
	if err != nil {
		refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, report)
}

func (p *process) pause(w http.ResponseWriter, r *http.Request) {
	var want struct {
		By     string `json:"by"`
		Reason string `json:"reason"`
	}
	if !readJSON(w, r, &want) {
		return
	}
	mark, err := p.shop.queue.Admin().Pause(r.Context(), layer.PauseOptions{By: want.By, Reason: want.Reason})
	if err != nil {
		refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, mark)
}

func (p *process) resume(w http.ResponseWriter, r *http.Request) {
	mark, err := p.shop.queue.Admin().Resume(r.Context(), layer.ResumeOptions{})
	if err != nil {
		refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, mark)
}

// readJSON reads a small request.
func readJSON(w http.ResponseWriter, r *http.Request, value any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(value); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}
