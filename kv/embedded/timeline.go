package embedded

import (
	"encoding/binary"

	"go.etcd.io/bbolt"
)

// Versions advance by a million a second, also while no process has the folder open: the next opening adds the time
// that has passed since the last commit. So the age of a row, by versions, is about its true age. Users of the database
// rely on that before they remove a row because of its age.
//
// The folder has a time of its own for that, the version plus a number that is stored, in microseconds. The time never
// goes back, and never lags behind the clock of the process that commits. Example: the clock of a process is a day
// behind. The time of the folder continues while the process commits, and so the next process, whose clock is right,
// does not add a day. After a process whose clock was a day ahead, openings add nothing for a day: rows look too young,
// never too old.

// The time is stored with the version that it belongs to. An earlier version of the engine moves the version and leaves
// the time as it was: then the time of the folder is not known.

// unknownJump is added to the version when a folder whose time is not known is opened. The recovery of a cluster makes
// the same jump.
const unknownJump = 100_000_000

// timeline is the time of a folder.
type timeline struct {
	clock Clock
	ahead int64 // by how many microseconds the time, since 1970, is ahead of the version
}

// reopen returns the version from which on an opened folder continues.
func reopen(meta *bbolt.Bucket, clock Clock) (t timeline, version int64) {
	stored := int64(binary.BigEndian.Uint64(meta.Get(versionKey)))
	now := clock.Now().UnixMicro()
	v := meta.Get(aheadKey)
	if len(v) != 16 || int64(binary.BigEndian.Uint64(v[8:])) != stored {
		version = stored + unknownJump
		return timeline{clock: clock, ahead: now - version}, version
	}
	t = timeline{clock: clock, ahead: int64(binary.BigEndian.Uint64(v))}
	return t, max(stored+reopenJump, now-t.ahead)
}

// put writes a version and its time.
func (t *timeline) put(meta *bbolt.Bucket, version int64) error {
	t.ahead = max(t.ahead, t.clock.Now().UnixMicro()-version)
	b := binary.BigEndian.AppendUint64(nil, uint64(t.ahead))
	b = binary.BigEndian.AppendUint64(b, uint64(version))
	if err := meta.Put(aheadKey, b); err != nil {
		return err
	}
	return putVersion(meta, version)
}
