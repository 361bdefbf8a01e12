//go:build linux

package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// Limits that the kernel sets for a process from its start, and the task of that process.
const (
	// failCalls has the calls that fail: name, errno, and a + or - for each call that works or fails. The last one is
	// for all calls after it, too.
	failCalls = "EMBEDDED_FAIL_CALLS"
	// limitSpace is how much more address space a process gets than it has at its start, in bytes.
	limitSpace = "EMBEDDED_LIMIT_SPACE"
	// limitFile is the size of the largest file that a process may write, in bytes.
	limitFile = "EMBEDDED_LIMIT_FILE"
	// putFile is a database file that another process makes while the first of the failCalls fails: it is moved to the
	// folder.
	putFile = "EMBEDDED_PUT_FILE"
	// askFolder is the folder that a process opens, to tell what it gets there.
	askFolder = "EMBEDDED_ASK_FOLDER"
	// askMode is "exclusive" or "read-only".
	askMode = "EMBEDDED_ASK_MODE"
)

func init() {
	folder := os.Getenv(askFolder)
	if folder == "" {
		return
	}
	if err := limit(); err != nil {
		fmt.Println("no limits:", err)
		os.Exit(0)
	}
	ask(folder, os.Getenv(askMode))
	os.Exit(0)
}

// limit sets the limits of this process.
func limit() error {
	var bytes uint64
	if text := os.Getenv(limitSpace); text != "" {
		var pages uint64
		statm, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(string(statm), &pages); err != nil {
			return err
		}
		if _, err := fmt.Sscan(text, &bytes); err != nil {
			return err
		}
		bytes += pages * uint64(os.Getpagesize())
		if err := syscall.Setrlimit(unix.RLIMIT_AS, &syscall.Rlimit{Cur: bytes, Max: bytes}); err != nil {
			return err
		}
	}
	if text := os.Getenv(limitFile); text != "" {
		if _, err := fmt.Sscan(text, &bytes); err != nil {
			return err
		}
		if err := syscall.Setrlimit(unix.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: bytes}); err != nil {
			return err
		}
	}
	if text := os.Getenv(failCalls); text != "" {
		return fail(text)
	}
	return nil
}

// failing is one kind of call, and how it fails.
type failing struct {
	number uint32
	errno  unix.Errno
	works  string
	put    string // see putFile; "" = none
}

// fail makes calls of the system fail in the kernel, in each thread of this process. The kernel asks for each call of
// that kind (seccomp's user notification).
func fail(text string) error {
	numbers := map[string]uint32{
		"flock": unix.SYS_FLOCK, "mmap": unix.SYS_MMAP, "fdatasync": unix.SYS_FDATASYNC, "pread": unix.SYS_PREAD64,
		"ftruncate": unix.SYS_FTRUNCATE, "fsync": unix.SYS_FSYNC, "linkat": unix.SYS_LINKAT,
	}
	f := &failing{put: os.Getenv(putFile)}
	var name, errno string
	if _, err := fmt.Sscan(text, &name, &errno, &f.works); err != nil {
		return err
	}
	f.number = numbers[name]
	for e := unix.Errno(1); e < 200; e++ {
		if unix.ErrnoName(e) == errno {
			f.errno = e
		}
	}
	const (
		number, file         = 0, 16 + 4*8 // where seccomp_data has the number of the call, and the fifth argument
		load                 = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal                = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret                  = unix.BPF_RET
		allow, notify        = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_USER_NOTIF
		noFile        uint32 = 0xffffffff // a map of memory alone, as the runtime makes them
	)
	var program []unix.SockFilter
	add := func(code uint16, jt, jf uint8, k uint32) {
		program = append(program, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
	}
	add(load, 0, 0, number)
	add(equal, 1, 0, f.number)
	add(ret, 0, 0, allow)
	if name == "mmap" {
		add(load, 0, 0, file)
		add(equal, 0, 1, noFile)
		add(ret, 0, 0, allow)
	}
	add(ret, 0, 0, notify)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER |
		unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	listener, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&filter)))
	runtime.KeepAlive(program)
	if failed != 0 {
		return fmt.Errorf("seccomp: %w", failed)
	}
	go f.answer(listener)
	return nil
}

// answer answers the kernel's questions.
func (f *failing) answer(listener uintptr) {
	const ( // SECCOMP_IOCTL_NOTIF_RECV and _SEND
		receive = 0xc0502100
		send    = 0xc0182101
	)
	for {
		// These are the structs seccomp_notif and seccomp_notif_resp.
		var question struct {
			id         uint64
			pid, flags uint32
			data       [64]byte
		}
		var answer struct {
			id    uint64
			value int64
			errno int32
			flags uint32
		}
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, listener, receive, uintptr(unsafe.Pointer(&question))); e != 0 {
			continue
		}
		answer.id = question.id
		if f.works[0] == '+' {
			answer.flags = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
		} else {
			answer.errno = -int32(f.errno)
			if f.put != "" {
				_ = os.Rename(f.put, fileOf(os.Getenv(askFolder))) // if that fails, the test does
				f.put = ""
			}
		}
		if len(f.works) > 1 {
			f.works = f.works[1:]
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, listener, send, uintptr(unsafe.Pointer(&answer)))
	}
}

// ask opens a folder and tells what it gets. Then it writes, or reads, when a line says so.
func ask(folder, mode string) {
	tell := func(err error) {
		var errno syscall.Errno
		_ = errors.As(err, &errno)
		fmt.Printf("failed: corrupt=%t %s unknown=%t: %s\n", errors.Is(err, embedded.ErrCorrupt),
			unix.ErrnoName(errno), kv.MaybeCommitted(err), strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	db, err := embedded.OpenDisk(folder, embedded.Options{
		Exclusive: mode == "exclusive", ReadOnly: mode == "read-only",
	})
	if err != nil {
		tell(err)
		return
	}
	fmt.Println("open")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var value string
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			if in.Text() == "write" {
				for i := range 40 {
					tx.Set(fmt.Appendf(nil, "large %d", i), make([]byte, 100_000))
				}
				return nil
			}
			v, err := tx.Get([]byte("a")).Wait(ctx)
			value = string(v)
			return err
		})
		cancel()
		if err != nil {
			tell(err)
			continue
		}
		fmt.Println("done " + value)
	}
	_ = db.Close()
}

// asking is a process that opens a folder under limits.
type asking struct{ *process }

func startAsking(t *testing.T, folder, mode string, env ...string) asking {
	t.Helper()
	return asking{startProcess(t, folder, "ask", append(env, askFolder+"="+folder, askMode+"="+mode)...)}
}

// answer is the next line that the process tells. The test is skipped where the kernel sets no such limits.
func (a asking) answer() string {
	a.t.Helper()
	text, err := a.told.ReadString('\n')
	require.NoError(a.t, err)
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "no limits") {
		a.t.Skip(text)
	}
	return text
}

// withPair makes a folder with one pair.
func withPair(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	db := openDisk(t, folder, embedded.Options{})
	put(t, db, "a", "1")
	require.NoError(t, db.Close())
	return folder
}

// TestSystemErrorsAreNoVerdict: OpenDisk calls a file corrupt for the bytes that it has read, and never for an error of
// the system. Such an error names the call and the folder, carries the errno, and says what to do. The folder opens
// again when the system works.
func TestSystemErrorsAreNoVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fail, mode string
		fresh      bool // the folder has no database yet
		call, cure string
	}{
		{fail: "mmap ENOMEM -", call: "mmap", cure: "ulimit -v"},
		{fail: "mmap ENOMEM +-", call: "mmap", cure: "ulimit -v"},
		{fail: "mmap ENOMEM -", mode: "read-only", call: "mmap", cure: "ulimit -v"},
		{fail: "mmap ENOMEM -", fresh: true, call: "mmap", cure: "ulimit -v"},
		{fail: "mmap ENODEV -", call: "mmap", cure: "cannot map files"},
		{fail: "mmap EAGAIN -", call: "mmap", cure: "ulimit -l"},
		{fail: "flock ENOLCK -", call: "flock", cure: "gives no locks"},
		{fail: "flock ENOLCK -", mode: "exclusive", call: "flock", cure: "gives no locks"},
		{fail: "flock ENOLCK +-", mode: "exclusive", call: "flock", cure: "gives no locks"},
		{fail: "flock ENOLCK -", mode: "read-only", call: "flock", cure: "gives no locks"},
		{fail: "flock EINTR -", mode: "read-only", call: "flock"},
		{fail: "fdatasync EIO -", call: "fdatasync"},
		{fail: "fdatasync EIO +-", call: "fdatasync"},
		{fail: "fdatasync EDQUOT -", call: "fdatasync", cure: "quota"},
		{fail: "fdatasync EINTR -", call: "fdatasync"},
		{fail: "fdatasync EIO -", fresh: true, call: "fdatasync"},
		{fail: "fdatasync EDQUOT -", fresh: true, call: "fdatasync", cure: "quota"},
		{fail: "pread EIO -", call: "read"},
		{fail: "pread EIO -", mode: "read-only", call: "read"},
		{fail: "pread EIO +-", call: "read"},
	} {
		t.Run(strings.TrimSpace(fmt.Sprintf("%s %s fresh=%t", c.fail, c.mode, c.fresh)), func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			if !c.fresh {
				folder = withPair(t)
			}
			answer := startAsking(t, folder, c.mode, failCalls+"="+c.fail).answer()
			require.Contains(t, answer, "failed: corrupt=false "+strings.Fields(c.fail)[1])
			require.Contains(t, answer, c.call)
			require.Contains(t, answer, folder)
			require.Contains(t, answer, c.cure)
			db := openDisk(t, folder, embedded.Options{})
			if !c.fresh {
				require.Equal(t, "1", read(t, db, "a"))
			}
		})
	}
}

// TestNewFoldersAreDurable: OpenDisk syncs the folder above each folder that it makes, and above one that has no
// database yet, because the process that has made it may have been killed before it synced. Otherwise a power cut could
// take the folder away together with commits that were acknowledged.
func TestNewFoldersAreDurable(t *testing.T) {
	t.Parallel()
	const failed = "failed: corrupt=false EIO unknown=false: embedded: folder for the database: sync "
	for _, c := range []struct{ there, calls, want string }{
		{"", "-+", failed},
		{"", "+-+", failed},
		{"", "++-+", failed},
		{"", "+", "open"},
		{"a", "-+", failed},
		{"a", "+-+", failed},
		{"a", "+", "open"},
		{"a/b", "-+", failed},
		{"a/b", "+", "open"},
	} {
		base := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(base, c.there), 0o700))
		p := startAsking(t, filepath.Join(base, "a", "b"), "", failCalls+"=fsync EIO "+c.calls)
		require.Contains(t, p.answer(), c.want, "%q is there, %s", c.there, c.calls)
	}
}

// TestNameOfTheFileIsDurable: each opening to write syncs the folder, also if the database is there: the process that
// has made it may have been killed before it synced. Otherwise a power cut could take the database away together with
// commits that were acknowledged. A file system that cannot sync folders is no reason not to open the database.
func TestNameOfTheFileIsDurable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ errno, mode, want string }{
		{"EIO", "", "failed: corrupt=false EIO unknown=false: embedded: open "},
		{"EIO", "exclusive", "failed: corrupt=false EIO unknown=false: embedded: open "},
		{"EIO", "read-only", "open"},
		{"EINVAL", "", "open"},
		{"EINVAL", "exclusive", "open"},
	} {
		folder := withPair(t)
		p := startAsking(t, folder, c.mode, failCalls+"=fsync "+c.errno+" -")
		answer := p.answer()
		require.Contains(t, answer, c.want)
		if c.want != "open" {
			require.Contains(t, answer, "sync "+folder)
			require.Equal(t, "1", read(t, openDisk(t, folder, embedded.Options{}), "a"))
		}
	}
}

// TestFirstDatabaseStays: a file system without hard links has no step that makes a name only if there is none. A
// process that makes a database there does not replace the one that another process has made in the meantime.
func TestFirstDatabaseStays(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "exclusive"} {
		for _, rival := range []bool{false, true} {
			folder, want := t.TempDir(), "done"
			limits := []string{failCalls + "=linkat EPERM -"}
			if rival {
				want = "done 1"
				limits = append(limits, putFile+"="+fileOf(withPair(t)))
			}
			p := startAsking(t, folder, mode, limits...)
			require.Equal(t, "open", p.answer())
			p.tell("read")
			require.Equal(t, want, p.answer())
			p.finish()
			left, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Len(t, left, 1, "one file, and nothing left of its making: %v", left)
		}
	}
}

// TestPageBelowItself: a file whose pages form a circle is corrupt. OpenDisk does not walk round it until the memory is
// used up.
func TestPageBelowItself(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filled(t, folder)
	content, at := branchPage(t, file)
	page := content[at:]
	copy(page[16+8:16+16], page[:8]) // the first child is the page itself
	require.NoError(t, os.WriteFile(file, content, 0o600))
	for _, mode := range []string{"", "exclusive", "read-only"} {
		answer := startAsking(t, folder, mode, fmt.Sprintf("%s=%d", limitSpace, 1<<30)).answer()
		require.Contains(t, answer, "failed: corrupt=true")
		require.Contains(t, answer, folder)
	}
}

// TestOpeningGoesOn: an opening that a signal interrupts is tried again. A system that has too little address space for
// the whole map, or whose files cannot be that long, gets a smaller map.
func TestOpeningGoesOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ fail, mode string }{
		{fail: "flock EINTR ---+"},
		{fail: "flock EINTR ---+", mode: "exclusive"},
		{fail: "flock EINTR +---+", mode: "exclusive"},
		{fail: "flock EINTR ---+", mode: "read-only"},
		{fail: "fdatasync EINTR -+"},
		{fail: "fdatasync EINTR +-+"},
		{fail: "mmap EOVERFLOW +---+"},
		{fail: "mmap EAGAIN +---+"},
		{fail: "mmap ENOMEM +---+", mode: "read-only"},
	} {
		for _, fresh := range []bool{false, true} {
			if fresh && c.mode == "read-only" {
				continue
			}
			t.Run(strings.TrimSpace(fmt.Sprintf("%s %s fresh=%t", c.fail, c.mode, fresh)), func(t *testing.T) {
				t.Parallel()
				folder, want := t.TempDir(), "done"
				if !fresh {
					folder, want = withPair(t), "done 1"
				}
				calls := c.fail
				if fresh && strings.HasPrefix(calls, "mmap") {
					calls = strings.Replace(calls, "+", "++", 1) // the new file is mapped before
				}
				p := startAsking(t, folder, c.mode, failCalls+"="+calls)
				require.Equal(t, "open", p.answer())
				p.tell("read")
				require.Equal(t, want, p.answer())
				p.finish()
			})
		}
	}
}

// TestLimitedAddressSpace: a process that may use little address space opens a folder, and as much is left for the
// process itself.
func TestLimitedAddressSpace(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "exclusive", "read-only"} {
		for _, more := range []int{512 << 20, 3 << 30} {
			t.Run(fmt.Sprintf("%s %d MiB", mode, more>>20), func(t *testing.T) {
				t.Parallel()
				p := startAsking(t, withPair(t), mode, fmt.Sprintf("%s=%d", limitSpace, more))
				require.Equal(t, "open", p.answer())
				maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.Process.Pid))
				require.NoError(t, err)
				var begin, end int
				for line := range strings.Lines(string(maps)) {
					if strings.Contains(line, "kv.bbolt") {
						_, err := fmt.Sscanf(line, "%x-%x", &begin, &end)
						require.NoError(t, err)
					}
				}
				require.Positive(t, end-begin)
				require.LessOrEqual(t, end-begin, more/2)
				p.tell("read")
				require.Equal(t, "done 1", p.answer())
				p.finish()
			})
		}
	}
}

// TestTooLittleAddressSpace: a file that is larger than the address space of a process is not corrupt.
func TestTooLittleAddressSpace(t *testing.T) {
	t.Parallel()
	folder := withPair(t)
	enlarge(t, folder)
	for _, mode := range []string{"", "exclusive", "read-only"} {
		answer := startAsking(t, folder, mode, fmt.Sprintf("%s=%d", limitSpace, 1<<30)).answer()
		require.Contains(t, answer, "failed: corrupt=false ENOMEM")
		require.Contains(t, answer, "ulimit -v")
	}
	require.Equal(t, "1", read(t, openDisk(t, folder, embedded.Options{}), "a"))
}

// TestUnreadPageIsNoVerdict: a page that the system cannot bring into memory says nothing about the data. A page of
// zeros that was read does. The file here has a hole, and its file system is full: the hole cannot be mapped.
func TestUnreadPageIsNoVerdict(t *testing.T) {
	folder := t.TempDir()
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("no file system can be mounted here:", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(folder, 0)) })
	db, err := embedded.OpenDisk(folder, embedded.Options{Exclusive: true})
	require.NoError(t, err)
	for i := range 100 {
		put(t, db, fmt.Sprintf("key %03d", i), strings.Repeat("x", 1000))
	}
	require.NoError(t, db.Close())
	name := filepath.Join(folder, "kv.bbolt")
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	page := int64(os.Getpagesize())
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	info, err := f.Stat()
	require.NoError(t, err)
	require.NoError(t, unix.Fallocate(int(f.Fd()), punch, 2*page, info.Size()-2*page)) // all but the first two pages
	require.NoError(t, f.Close())
	filler, err := os.Create(filepath.Join(folder, "filler"))
	require.NoError(t, err)
	_, err = filler.ReadFrom(zeros{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, filler.Close())

	for _, o := range []embedded.Options{{Exclusive: true}, {ReadOnly: true}} {
		_, err = embedded.OpenDisk(folder, o)
		require.ErrorContains(t, err, "could not read a page")
		require.ErrorContains(t, err, folder)
		require.NotErrorIs(t, err, embedded.ErrCorrupt)
	}
	require.NoError(t, os.Remove(filler.Name()))
	_, err = embedded.OpenDisk(folder, embedded.Options{Exclusive: true})
	require.ErrorIs(t, err, embedded.ErrCorrupt)
}

// zeros are without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return copy(b, make([]byte, len(b))), nil }

// enlarge makes a database file larger than 4 GiB, without a page more on the disk.
func enlarge(t *testing.T, folder string) {
	t.Helper()
	require.NoError(t, os.Truncate(filepath.Join(folder, "kv.bbolt"), 5<<30))
}

// startLater starts a process that opens the folder when it is told to go on. On a busy machine the start of a process
// takes longer than a client waits for one that serves.
func startLater(t *testing.T, folder string) *process {
	t.Helper()
	p := startProcess(t, folder, laterOnly)
	p.hear(toldReady)
	return p
}

// TestTakeoverWithLittleSpace: a client that cannot open the folder itself goes on waiting when the process that serves
// ends. It works on with the next process that serves. If there is none, its calls end after two seconds, with its own
// reason.
func TestTakeoverWithLittleSpace(t *testing.T) {
	t.Parallel()
	folder := withPair(t)
	enlarge(t, folder)
	server := startProcess(t, folder, servesOnly)
	server.hear(toldServing)
	client := startAsking(t, folder, "", fmt.Sprintf("%s=%d", limitSpace, 1<<30))
	require.Equal(t, "open", client.answer())
	client.tell("read")
	require.Equal(t, "done 1", client.answer())

	next := startLater(t, folder)
	server.kill()
	client.tell("read")
	time.Sleep(500 * time.Millisecond) // it has tried to open the folder by now
	next.tell("go on")
	next.hear(toldServing)
	require.Equal(t, "done 1", client.answer())

	last := startLater(t, folder)
	next.kill()
	opener := startProcess(t, folder, opensOnly)
	opener.hear(toldOpening)
	client.tell("read")
	time.Sleep(2500 * time.Millisecond) // more than the client waits while no process has the folder
	opener.kill()
	time.Sleep(300 * time.Millisecond)
	last.tell("go on")
	last.hear(toldServing)
	require.Equal(t, "done 1", client.answer())

	last.kill()
	begun := time.Now()
	client.tell("read")
	answer := client.answer()
	require.Contains(t, answer, "failed: corrupt=false ENOMEM")
	require.Contains(t, answer, "ulimit -v")
	require.GreaterOrEqual(t, time.Since(begun), 1500*time.Millisecond)
	client.finish()
}

// TestTakeoverWithoutLocks: a client that cannot lock the folder when the process that serves has ended tells so after
// two seconds.
func TestTakeoverWithoutLocks(t *testing.T) {
	t.Parallel()
	folder := withPair(t)
	server := startProcess(t, folder, servesOnly)
	server.hear(toldServing)
	client := startAsking(t, folder, "", failCalls+"=flock ENOLCK +-")
	require.Equal(t, "open", client.answer())
	server.kill()
	client.tell("read")
	answer := client.answer()
	require.Contains(t, answer, "failed: corrupt=false ENOLCK")
	require.Contains(t, answer, "flock")
	client.finish()
}

// TestWritesThatFail: an error of the system at a commit names the file and the call, and carries the errno, also where
// bbolt keeps its text alone. The outcome is unknown only after the page was written that names the newest transaction,
// or if the file cannot be read any more.
func TestWritesThatFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env, errno, call string
		unknown          bool
	}{
		"size of a file": {limitFile + "=1000000", "EFBIG", "file", false},
		"disk quota":     {failCalls + "=fdatasync EDQUOT ++-", "EDQUOT", "fdatasync", false},
		"last sync":      {failCalls + "=fdatasync EDQUOT +++-", "EDQUOT", "fdatasync", true},
		"truncate":       {failCalls + "=ftruncate EIO -", "EIO", "resize", false},
		"map": { // of 4 MiB at first
			failCalls + "=mmap ENOMEM +" + strings.Repeat("-", 12) + "+-", "ENOMEM", "mmap", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := withPair(t)
			p := startAsking(t, folder, "exclusive", c.env)
			require.Equal(t, "open", p.answer())
			var answer string
			for range 40 {
				p.tell("write")
				if answer = p.answer(); !strings.HasPrefix(answer, "done") {
					break
				}
			}
			require.Contains(t, answer, fmt.Sprintf("failed: corrupt=false %s unknown=%t", c.errno, c.unknown))
			require.Contains(t, answer, c.call)
			require.Contains(t, answer, folder)
			p.finish()
			require.Equal(t, "1", read(t, openDisk(t, folder, embedded.Options{}), "a"))
		})
	}
}
