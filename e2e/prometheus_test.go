package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// withoutData are expressions of the board that have no data during the demo, with the reason. There are none.
var withoutData = map[string]string{}

// TestBoardHasData: while the demo runs, each expression of the board has data in a real Prometheus, and so has each
// series that the rules look at; the rules themselves are evaluated without an error. Every process is a target.
func TestBoardHasData(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	needs(t, err == nil, "prometheus", "apt-get install -y --no-install-recommends prometheus")
	dir := t.TempDir()
	bin := build(t, dir)
	base := freePorts(t, 6)
	api := startPrometheus(t, prometheus, dir, base)

	begun := time.Now()
	demo := exec.Command(bin, "demo", "--metrics", address(base))
	demo.Env = append(os.Environ(), "TMPDIR="+dir)
	out, err := demo.CombinedOutput()
	require.NoError(t, err, "%s", out)
	ended := time.Now()
	ask := func(expr string) []series { return api.during(t, expr, begun, ended) }

	up := ask("up == 1")
	for n := range 5 {
		// A worker that is killed may be dead before anybody has asked.
		killed := n > 0 && strings.Contains(string(out), fmt.Sprintf("killed process %d,", n))
		is := func(s series) bool { return s.Metric["instance"] == address(base+n) }
		require.True(t, killed || slices.ContainsFunc(up, is), "process %d of the demo is a target:\n%s", n, out)
	}
	handled := ask(`messaging_client_consumed_messages_total{error_type=""} > 0`)
	require.GreaterOrEqual(t, len(handled), 3, "the workers tell what they have done")
	require.Empty(t, ask("fdbfifo_nothing"), "what there is not has no data")
	for _, expr := range boardExpressions(t) {
		expr = strings.NewReplacer("$queue", ".*", "$__rate_interval", "3s").Replace(expr)
		require.NotContains(t, expr, "$")
		_, excepted := withoutData[expr]
		require.Equal(t, excepted, len(ask(expr)) == 0, "%s", expr)
	}
	rules, err := os.ReadFile("../deploy/rules.yml")
	require.NoError(t, err)
	selectors := regexp.MustCompile(`\bfdbfifo_[a-z_]+(\{[^}]*\})?`).FindAllString(string(rules), -1)
	require.Greater(t, len(selectors), 10)
	for _, s := range selectors {
		require.NotEmpty(t, ask(s), "%s of rules.yml", s)
	}
	api.rulesAreWell(t, strings.Count(string(rules), "- alert: "))
}

// build builds the command, and returns its path.
func build(t *testing.T, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "fdbfifo")
	out, err := exec.Command("go", "-C", "..", "build", "-o", bin, "./cmd/fdbfifo").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts returns the first of n free ports in a row. They are below the ports that a system assigns by itself.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	first := os.Getpid() % 100 // two runs at a time seldom begin at the same port
	for i := range 100 {
		base, free := 20_000+(first+i)%100*100, true
		for port := base; port < base+n && free; port++ {
			l, err := net.Listen("tcp", address(port))
			if free = err == nil; free {
				require.NoError(t, l.Close())
			}
		}
		if free {
			return base
		}
	}
	require.Fail(t, "no free ports")
	return 0
}

// prometheusAPI is where a Prometheus answers.
type prometheusAPI string

// startPrometheus starts a Prometheus with the configuration of deploy. It changes the ports to base and the next ones,
// and shortens the intervals. Prometheus listens on the last of the ports.
func startPrometheus(t *testing.T, prometheus, dir string, base int) prometheusAPI {
	t.Helper()
	text, err := os.ReadFile("../deploy/prometheus.yml")
	require.NoError(t, err)
	rules, err := filepath.Abs("../deploy/rules.yml")
	require.NoError(t, err)
	config := string(text)
	for _, change := range [][2]string{
		{"scrape_interval: 5s", "scrape_interval: 200ms"}, {"evaluation_interval: 15s", "evaluation_interval: 1s"},
		{"[rules.yml]", "[" + rules + "]"},
	} {
		require.Contains(t, config, change[0])
		config = strings.ReplaceAll(config, change[0], change[1])
	}
	for i := range 5 {
		target := `"127.0.0.1:` + strconv.Itoa(9464+i) + `"`
		require.Contains(t, config, target)
		config = strings.ReplaceAll(config, target, `"`+address(base+i)+`"`)
	}
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	listen := address(base + 5)
	cmd := exec.Command(prometheus, "--config.file", file, "--storage.tsdb.path", filepath.Join(dir, "prometheus"),
		"--web.listen-address", listen, "--log.level", "error")
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	api := prometheusAPI("http://" + listen)
	require.Eventually(t, func() bool {
		r, err := http.Get(string(api) + "/-/ready")
		if err != nil {
			return false
		}
		require.NoError(t, r.Body.Close())
		return r.StatusCode == http.StatusOK
	}, patience, 50*time.Millisecond)
	return api
}

// series is one series of an answer.
type series struct {
	Metric map[string]string `json:"metric"`
	Values [][2]any          `json:"values"`
}

// get asks Prometheus, and puts the data of the answer into to.
func (a prometheusAPI) get(t *testing.T, path string, in url.Values, to any) {
	t.Helper()
	r, err := http.Get(string(a) + path + "?" + in.Encode())
	require.NoError(t, err)
	defer r.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	require.NoError(t, json.NewDecoder(r.Body).Decode(&answer))
	require.Equal(t, "success", answer.Status, "%s %v: %s", path, in, answer.Error)
	require.NoError(t, json.Unmarshal(answer.Data, to))
}

// during returns the series of an expression that had a number at some time from begun to ended.
func (a prometheusAPI) during(t *testing.T, expr string, begun, ended time.Time) (found []series) {
	t.Helper()
	stamp := func(at time.Time) string { return fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000) }
	var answer struct{ Result []series }
	a.get(t, "/api/v1/query_range", url.Values{
		"query": {expr}, "start": {stamp(begun)}, "end": {stamp(ended)}, "step": {"0.2"},
	}, &answer)
	for _, s := range answer.Result {
		for _, v := range s.Values {
			text, _ := v[1].(string)
			if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
				found = append(found, s)
				break
			}
		}
	}
	return found
}

// rulesAreWell wants so many rules, each evaluated without an error.
func (a prometheusAPI) rulesAreWell(t *testing.T, want int) {
	t.Helper()
	var answer struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	a.get(t, "/api/v1/rules", nil, &answer)
	n := 0
	for _, g := range answer.Groups {
		for _, r := range g.Rules {
			require.Equal(t, "ok", r.Health, "%s: %s", r.Name, r.LastError)
			n++
		}
	}
	require.Equal(t, want, n)
}

// boardExpressions are those of the board.
func boardExpressions(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../deploy/grafana.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &board))
	for _, p := range board.Panels {
		require.NotEmpty(t, p.Targets, "%s", p.Title)
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	require.Greater(t, len(all), 10)
	return all
}
