package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// EngineOptions has the argument of --engine, and the command's demands on the engine.
type EngineOptions struct {
	// Arg is what follows the name and a colon in --engine; "" if nothing does.
	Arg string
	// Create makes the engine create a missing database. Without it the engine must return an error that wraps
	// fs.ErrNotExist, and must leave nothing behind.
	Create bool
	// Notice tells the user something worth knowing, such as where the data is.
	Notice func(format string, args ...any)
}

// OpenFunc opens an engine. The caller must close the returned DB.
type OpenFunc func(ctx context.Context, o EngineOptions) (kv.DB, error)

// Embedded returns the engines that need nothing else: "memory" and "disk".
func Embedded() map[string]OpenFunc {
	return map[string]OpenFunc{"memory": openMemory, "disk": openDisk}
}

func openMemory(_ context.Context, o EngineOptions) (kv.DB, error) {
	if o.Arg != "" {
		return nil, usagef("--engine memory takes no argument, not %q", o.Arg)
	}
	return embedded.OpenMemory(embedded.Options{}), nil
}

// databaseFile is the file of the database. A folder without it has no queues, whatever else is there.
const databaseFile = "kv.bbolt"

func openDisk(ctx context.Context, o EngineOptions) (kv.DB, error) {
	folder := o.Arg
	if folder == "~" || strings.HasPrefix(folder, "~/") {
		return nil, usagef("--engine disk:%s: no shell replaces ~ behind a colon: write disk:\"$HOME%s\"",
			folder, folder[1:])
	}
	if folder == "" {
		var err error
		if folder, err = dataFolder(); err != nil {
			return nil, err
		}
	}
	// The same path is checked and opened. The system reads .. behind a link in another way than filepath.Abs.
	path, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(filepath.Join(path, databaseFile))
	missing := errors.Is(err, fs.ErrNotExist)
	if missing && !o.Create {
		return nil, &Error{Text: "there are no queues in " + folder, Exit: ExitNoQueue, Err: fs.ErrNotExist}
	}
	if err := checkFolderOfRoot(path); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	chosen := err == nil && len(entries) == 0 // a user that has made an empty folder knows where the queues are
	f, err := openInTime(ctx, path, o.Notice)
	if err != nil {
		return nil, err
	}
	if f.err != nil {
		return nil, &folderError{folder, f.err}
	}
	if f.notice != "" {
		o.Notice("%s", f.notice)
	}
	if missing && !chosen {
		o.Notice("queues are kept in %s", folder)
	}
	return f.db, nil
}

// slowOpening is how long a command opens a folder without a word.
const slowOpening = time.Second

// leftOpening is how long an interrupted command waits for an opening to end, so that usually nothing of the command
// works in the folder when it ends.
const leftOpening = 300 * time.Millisecond

// openInTime opens a folder. It returns errInterrupted when ctx ends, at most leftOpening later. A database that is
// open later is closed.
func openInTime(ctx context.Context, folder string, tell func(format string, args ...any)) (openedFolder, error) {
	if ctx.Err() != nil {
		return openedFolder{}, errInterrupted
	}
	opened, over := make(chan openedFolder), make(chan struct{})
	go func() {
		defer close(over)
		f := openFolder(folder)
		select {
		case opened <- f:
		case <-ctx.Done():
			if f.err == nil {
				_ = f.db.Close()
			}
		}
	}()
	slow := time.After(slowOpening)
	for {
		select {
		case f := <-opened:
			return f, nil
		case <-ctx.Done():
			select {
			case <-over:
			case <-time.After(leftOpening):
			}
			return openedFolder{}, errInterrupted
		case <-slow:
			tell("still opening %s: the file is large, or another process has the folder and does not answer", folder)
		}
	}
}

// folderError says that a folder with queues cannot be opened.
type folderError struct {
	folder string
	err    error
}

func (e *folderError) Error() string { return fmt.Sprintf("open %s: %v", e.folder, e.err) }
func (e *folderError) Unwrap() error { return e.err }

// openedFolder is the result of openFolder.
type openedFolder struct {
	db     *embedded.DB
	notice string // for the user; may be empty
	err    error
}

// openFolder opens a folder. It opens one that this user may not write for reading alone.
func openFolder(folder string) (f openedFolder) {
	written, readOnly := embedded.ReadOnly(folder)
	if readOnly {
		f.db, f.err = embedded.OpenDisk(folder, embedded.Options{ReadOnly: true})
	}
	if !readOnly || errors.Is(f.err, embedded.ErrLocked) {
		// If a process that may write there has the folder open, use the database through that process.
		f.db, f.err = embedded.OpenDisk(folder, embedded.Options{})
	} else if f.err == nil {
		asOf := written.UTC().Format("2006-01-02 15:04:05 UTC")
		f.notice = fmt.Sprintf("%s is read-only: seen as it was last written, %s", folder, asOf)
	}
	return f
}

// dataFolder is fdbfifo's folder in the user's data directory, by the XDG base directory rules.
func dataFolder() (string, error) {
	if base := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "fdbfifo"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no data directory: %w: give --engine disk:PATH", err)
	}
	return filepath.Join(home, ".local", "share", "fdbfifo"), nil
}

// engineParts are the name and the argument in --engine. Nothing else reads that text.
func (s *session) engineParts() (name, arg string) {
	name, arg, _ = strings.Cut(s.engine, ":")
	return name, arg
}

// checkEngine refuses an empty argument after the colon, as in disk:$UNSET, because it would mean the default folder.
func (s *session) checkEngine() error {
	name, arg := s.engineParts()
	if strings.TrimSpace(arg) == "" && strings.Contains(s.engine, ":") {
		return usagef("--engine %s has nothing behind the colon: give a value, or write --engine %s", s.engine, name)
	}
	return nil
}

// inMemory reports whether the engine's data is gone when the command ends.
func (s *session) inMemory() bool {
	name, _ := s.engineParts()
	return name == "memory"
}

// openEngine opens the engine that --engine names.
func (s *session) openEngine(ctx context.Context, create bool) (kv.DB, error) {
	name, arg := s.engineParts()
	open, ok := s.app.Engines[name]
	if !ok {
		return nil, s.unknownEngine(name)
	}
	db, err := open(ctx, EngineOptions{Arg: arg, Create: create, Notice: s.notice})
	var own *Error
	if errors.As(err, &own) && own.Exit == ExitNoQueue && own.Hint == "" {
		own.Hint = s.command("enqueue") + " makes the first."
	}
	return db, err
}

// clusterEngine is the engine that only the command of the module fdbkv has.
const clusterEngine = "fdb"

func (s *session) unknownEngine(name string) error {
	known := strings.Join(slices.Sorted(maps.Keys(s.app.Engines)), ", ")
	if name != clusterEngine {
		return usagef("unknown engine %q: there are %s", name, known)
	}
	return &Error{
		Text: "this build of fdbfifo has no FoundationDB engine: there are " + known,
		Hint: "The same command with this engine is a module of its own: it needs cgo and FoundationDB's client\n" +
			"  library (libfdb_c 7.3 and its header). In the project's folder:\n" +
			"  go -C fdbkv build -o ../bin/ ./cmd/fdbfifo",
		Exit: ExitUsage,
	}
}
