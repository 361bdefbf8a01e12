//go:build unix

package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// readers are the commands that read a file or stdin, by the name FILE.
var readers = []string{
	"enqueue --body-file FILE", "enqueue --file FILE --format csv", "enqueue --file FILE --format jsonl",
	"enqueue --file FILE --format csv --partial", "enqueue --file FILE --format jsonl --partial",
	"edit ID --file FILE", "replace ID --file FILE", "state --group g --file FILE", "dead redrive --all --file FILE",
	"ack FILE", "nack FILE", "extend FILE",
}

// namedReaders are those that read a named file alone.
var namedReaders = []string{
	"serve --sqs 127.0.0.1:0 --keys FILE", "serve --sqs 127.0.0.1:0 --queues FILE",
	"serve --sqs 127.0.0.1:0 --tls-cert FILE --tls-key FILE",
	"console --listen 127.0.0.1:0 --user-header X --proxy-secret FILE",
	"console --listen 127.0.0.1:0 --tls-cert FILE --tls-key FILE", "demo --data FILE",
}

func readerArgs(command, file string) []string {
	command = strings.ReplaceAll(command, "ID", layer.ID{Group: "g"}.String())
	return strings.Fields(strings.ReplaceAll(command, "FILE", file))
}

// requireInterrupted runs a command, which must end by an interrupt.
func requireInterrupted(t *testing.T, ctx context.Context, args []string, in io.Reader) {
	t.Helper()
	app, _ := onMemory(t, 0)
	ended := make(chan error, 1)
	stderr := newScreen("")
	go func() { ended <- app.Run(ctx, args, in, io.Discard, stderr) }()
	select {
	case err := <-ended:
		require.Equal(t, ExitInterrupted, ExitCode(err), "%q: %s", args, stderr)
	case <-time.After(20 * time.Second):
		require.Fail(t, "it does not end", "%q", args)
	}
}

// TestReadsOfStdinEndAtCtrlC: the first Ctrl-C ends each command that reads stdin, also if stdin gives nothing.
func TestReadsOfStdinEndAtCtrlC(t *testing.T) {
	for _, command := range append(readers, "decode", "ack") {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		requireInterrupted(t, ctx, readerArgs(command, "-"), &mute{interrupt, t.Context().Done()})
	}
}

// TestReadsOfPipesEndAtCtrlC: the first Ctrl-C ends each command that reads a named pipe, also if the writer is silent.
func TestReadsOfPipesEndAtCtrlC(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, command := range append(readers, namedReaders...) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		go func() {
			// It can be opened as soon as the command opens it to read.
			if file, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil {
				defer file.Close()
			}
			interrupt()
			<-t.Context().Done()
		}()
		requireInterrupted(t, ctx, readerArgs(command, pipe), nil)
	}
}

// TestCertificateInFilesThatHang: connections get the certificate before while the files of the next one do not answer.
// They get the next one when the files have answered.
func TestCertificateInFilesThatHang(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	write := func(path string, text []byte) { require.NoError(t, os.WriteFile(path, text, 0o600)) }
	a, b := selfSigned(t, "one")
	write(cert, a)
	write(key, b)
	c, err := readCertificate(cert, key, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	a, b = selfSigned(t, "two")
	write(cert, a)
	require.NoError(t, os.Chtimes(cert, time.Time{}, time.Now().Add(-time.Hour))) // another time than before
	require.NoError(t, os.Remove(key))
	require.NoError(t, syscall.Mkfifo(key, 0o600)) // opening it takes until there is a writer
	c.looked = time.Time{}                         // as if the pause were over
	names := make(chan string)
	for range 3 {
		go func() {
			pair, _ := c.get(nil)
			names <- pair.Leaf.Subject.CommonName
		}()
	}
	for range 3 {
		select {
		case name := <-names:
			require.Equal(t, "one", name)
		case <-time.After(time.Minute):
			require.Fail(t, "no certificate")
		}
	}
	writer, err := os.OpenFile(key, os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, os.Remove(key))
	write(key, b)
	_, err = writer.Write(b)
	require.NoError(t, errors.Join(err, writer.Close()))
	require.Eventually(t, func() bool {
		pair, err := c.get(nil)
		return err == nil && pair.Leaf.Subject.CommonName == "two"
	}, time.Minute, 10*time.Millisecond)
}
