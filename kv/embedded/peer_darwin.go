package embedded

import "golang.org/x/sys/unix"

// peerOf returns the user and the number of the process that has connected to a socket, or that listens there.
func peerOf(fd int) (uid, pid int, err error) {
	peer, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return 0, 0, err
	}
	if pid, err = unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID); err != nil {
		pid = 0 // only the text of an error has it
	}
	return int(peer.Uid), pid, nil
}
