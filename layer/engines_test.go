package layer_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// What the tests run on is in this file alone: fdbkv/layertest has the same tests, and a FoundationDB cluster in this
// file's place.

type engine struct {
	name   string
	open   func(t *testing.T) kv.DB // an empty one; newEnv closes it
	faults bool
}

var socketFlag = flag.Bool("layer.socket", false, "every test through a socket, on a folder that another DB serves")

func engines() []engine {
	if *socketFlag {
		return []engine{{"socket", socket, false}, {"socket with faults", socket, true}}
	}
	return []engine{{"memory", anyEngine, false}, {"memory with faults", anyEngine, true}, {"disk", disk, false}}
}

// anyEngine opens the engine for tests that one is enough for.
func anyEngine(t *testing.T) kv.DB {
	if *socketFlag {
		return socket(t)
	}
	return embedded.OpenMemory(embedded.Options{})
}

func disk(t *testing.T) kv.DB { return openFolder(t, t.TempDir()) }

// socket opens a folder that another DB serves: all that the test does goes over a socket.
func socket(t *testing.T) kv.DB {
	path := t.TempDir()
	server := openFolder(t, path)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	client := openFolder(t, path)
	require.Zero(t, client.Usage().FileSize, "the other DB has the file")
	return client
}

func openFolder(t *testing.T, path string) *embedded.DB {
	db, err := embedded.OpenDisk(path, embedded.Options{})
	require.NoError(t, err)
	return db
}
