package embedded

import "os"

// Usage counts the resources that a database holds for transactions and watches. The counts must return to their
// earlier values when those have ended.
type Usage struct {
	Snapshots    int   // views of the store: the newest, if it was read, and older ones still read from
	Transactions int   // transactions that hold a snapshot
	Watches      int   // outstanding
	FileSize     int64 // bytes; 0 in memory, and while another process has the file
}

// Usage returns what the database holds now.
func (db *DB) Usage() Usage {
	u := Usage{Watches: int(db.slots.used.Load())}
	e := db.local.Load()
	if e == nil {
		return u
	}
	e.mu.Lock()
	u.Snapshots = len(e.old)
	for _, s := range e.old {
		u.Transactions += s.refs
	}
	if e.current != nil {
		u.Snapshots++
		u.Transactions += e.current.refs
	}
	e.mu.Unlock()
	if s, ok := e.store.(*diskStore); ok {
		if info, err := os.Stat(s.file.Path()); err == nil {
			u.FileSize = info.Size()
		}
	}
	return u
}
