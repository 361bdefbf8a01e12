package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// standIns starts a cluster of several servers that only sleep; its fdbcli notes in the file said what it is told.
func standIns(t *testing.T) (c *Cluster, said string) {
	t.Helper()
	bin := t.TempDir()
	said = filepath.Join(bin, "said")
	for name, script := range map[string]string{"fdbserver": "exec sleep 600", "fdbcli": `echo "$4" >> ` + said} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	t.Setenv(BinVariable, bin)
	t.Setenv(EngineVariable, "")
	c, err := StartSeveral(t.Context(), MinServers)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return c, said
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// TestSeveral: each server is a machine of its own, three coordinate, and two copies are kept.
func TestSeveral(t *testing.T) {
	c, said := standIns(t)
	require.Equal(t, "configure new double memory tenant_mode=optional_experimental commit_proxies=2 grv_proxies=1 "+
		"resolvers=2 logs=2\nget ready\n", read(t, said))
	require.Len(t, strings.Split(read(t, c.File), ","), 3)
	zones, classes := map[string]bool{}, map[string]int{}
	for _, s := range c.Servers {
		_, zone, _ := strings.Cut(strings.Join(s.args, " "), "--locality-zoneid ")
		zones[strings.Fields(zone)[0]] = true
		classes[s.Class]++
	}
	require.Len(t, zones, MinServers)
	require.Equal(t, map[string]int{"storage": 3, "log": 2, "stateless": 2}, classes)

	_, err := StartSeveral(t.Context(), MinServers-1)
	require.Error(t, err)
}

// TestRestartAsksAgain: a cluster that has just recovered refuses the first read, and answers the next.
func TestRestartAsksAgain(t *testing.T) {
	c, said := standIns(t)
	refuse := "#!/bin/sh\necho \"$4\" >> " + said + "\n[ $(grep -c . " + said + ") -ge 5 ] && exit 0\n" +
		"echo 'ERROR: Request for future version (1009)'; exit 1\n"
	require.NoError(t, os.WriteFile(c.cli, []byte(refuse), 0o700))
	require.NoError(t, c.Kill())
	require.NoError(t, c.Restart(t.Context()))
	require.True(t, strings.HasSuffix(read(t, said), "get ready\nget ready\nget ready\n"), "%s", read(t, said))
}

// TestHarmIsMended: whatever was done, and however early it is over, all servers run afterwards and none is excluded.
func TestHarmIsMended(t *testing.T) {
	c, said := standIns(t)
	tr := newTrouble(c, 1)
	for _, kind := range []string{harmKill, harmFreeze, harmExclude, harmConfigure, harmPower} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := tr.do(ctx, kind)
		require.NoError(t, err)
		cancel()
		require.NoError(t, tr.mended(t.Context()))
		for _, s := range c.Servers {
			require.False(t, s.ended(), "%s after %s", s, kind)
		}
	}
	text := read(t, said)
	require.Equal(t, strings.Count(text, "exclude no_wait "), strings.Count(text, "\ninclude "), text)
	require.Zero(t, tr.harm[harmEnded])

	// A server that ends by itself is no harm of the seed's, and is counted apart.
	require.NoError(t, thaw(c.Servers[0].run.Process))
	c.Servers[0].args = []string{"/bin/sh", "-c", "exit 3"}
	require.NoError(t, c.Servers[0].Kill())
	require.NoError(t, c.Servers[0].Start())
	<-c.Servers[0].exited
	c.Servers[0].args = c.Servers[1].args
	require.NoError(t, tr.mended(t.Context()))
	require.Equal(t, 1, tr.harm[harmEnded])
}

// TestTroubleEnds with the command that it was made for, and leaves the configuration that it found.
func TestTroubleEnds(t *testing.T) {
	c, said := standIns(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	harm, err := c.Trouble(ctx, 1)
	require.NoError(t, err)
	require.Empty(t, harm)
	require.True(t, strings.HasSuffix(read(t, said), "include all\nconfigure "+roles(2, 2)+"\nget ready\n"))
}

// TestTroubleThatLasts: a cluster that does not come back is reported with the seed and the last harm.
func TestTroubleThatLasts(t *testing.T) {
	c, _ := standIns(t)
	require.NoError(t, os.WriteFile(c.cli, []byte("#!/bin/sh\necho no answer; exit 1\n"), 0o700))
	tr := newTrouble(c, 3)
	tr.tellFor = 2 * time.Second
	_, err := tr.until(t.Context())
	require.ErrorContains(t, err, "seed 3, after ")
	require.ErrorContains(t, err, "no answer")
}

// TestRefused: a cluster that does not exclude a server, or takes no new configuration, has not failed.
func TestRefused(t *testing.T) {
	c, _ := standIns(t)
	script := "#!/bin/sh\ncase \"$4\" in exclude*|configure*) echo try again; exit 1;; esac\n"
	require.NoError(t, os.WriteFile(c.cli, []byte(script), 0o700))
	tr := newTrouble(c, 1)
	for _, kind := range []string{harmExclude, harmConfigure} {
		_, err := tr.do(t.Context(), kind)
		require.NoError(t, err)
	}
	require.NoError(t, tr.mended(t.Context()))
	require.Equal(t, 2, tr.harm[harmRefused])
}

// TestAnswersLater: a cluster that has just recovered may fail the first few who ask whether it answers.
func TestAnswersLater(t *testing.T) {
	c, said := standIns(t)
	script := "#!/bin/sh\n[ $(wc -l < " + said + ") -ge 4 ] && exit 0; echo asked >> " + said +
		"; echo 'future version (1009)'; exit 1\n"
	require.NoError(t, os.WriteFile(said, nil, 0o600))
	require.NoError(t, os.WriteFile(c.cli, []byte(script), 0o700))
	tr := newTrouble(c, 1)
	require.NoError(t, tr.mended(t.Context()))
}
