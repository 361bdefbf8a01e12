package crash

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"fdbfifo/kv/embedded"
)

// The moments at which a child is killed.
const (
	killOpening = "opening" // by the parent, some time after it was started
	killTimed   = "timed"   // by the parent, some time after it has opened the queue
	killCounted = "counted" // by the parent, after so many acknowledged operations
	killBefore  = "before"  // by itself, before a commit group is checked
	killApply   = "apply"   // by itself, before a commit group is written
	killDuring  = "during"  // by itself, while a commit group is written
	killWritten = "written" // by itself, when a commit group was written and no commit of it is answered
	killPower   = "power"   // as written; and of that group's pages only some have reached the disk
	killLie     = "lie"     // not drawn: the disk says of a commit group and all after it that they were synced, and lies
)

var killKinds = []string{
	killOpening, killTimed, killTimed, killCounted, killCounted, killBefore, killApply, killDuring, killDuring, killWritten,
	killPower, killPower,
}

// kill is when a child is to die.
type kill struct {
	Kind  string
	Count int           // of acknowledged operations, or of commit groups
	After time.Duration // of start, ready, or the begin of the write
}

func (k kill) String() string { return fmt.Sprintf("%s, count %d, after %s", k.Kind, k.Count, k.After) }

func drawKill(rng *rand.Rand) kill {
	k := kill{Kind: killKinds[rng.IntN(len(killKinds))]}
	switch k.Kind {
	case killOpening:
		k.After = time.Duration(rng.Int64N(int64(60 * time.Millisecond)))
	case killTimed:
		k.After = time.Duration(rng.Int64N(int64(150 * time.Millisecond)))
	case killCounted:
		k.Count = 1 + rng.IntN(400)
	default:
		k.Count = 1 + rng.IntN(80)
		k.After = time.Duration(rng.Int64N(int64(2 * time.Millisecond)))
	}
	return k
}

// Names of the copies of the file before and after the last commit group, in the folder of the database.
const (
	beforeName = "before"
	afterName  = "after"
)

// hooks make the engine kill its own process at the moment k.
func (k kill) hooks(folder string) embedded.Hooks {
	groups, writes := 0, 0
	var copied error // what failed is said by the engine, which fails with it
	h := embedded.Hooks{
		BeforeGroup: func(int) {
			if groups++; groups == k.Count && k.Kind == killBefore {
				die()
			}
		},
	}
	h.Apply = func() error {
		if writes++; writes != k.Count {
			return nil
		}
		switch k.Kind {
		case killApply:
			die()
		case killDuring:
			go func() {
				time.Sleep(k.After)
				die()
			}()
		case killPower, killLie:
			copied = copyFile(folder, beforeName)
		}
		return copied
	}
	h.Synced = func(err error) error {
		if err != nil || writes != k.Count {
			return err
		}
		switch k.Kind {
		case killWritten:
			die()
		case killPower:
			if err := copyFile(folder, afterName); err != nil {
				return err
			}
			die()
		}
		return nil
	}
	return h
}

// die kills the process as kill -9 does, and does not return.
func die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

const fileName = "kv.bbolt"

func copyFile(folder, name string) error {
	from, err := os.Open(filepath.Join(folder, fileName))
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(folder, name))
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
