package embedded

import "syscall"

// peerOf returns the user and the number of the process that has connected to a socket, or that listens there.
func peerOf(fd int) (uid, pid int, err error) {
	peer, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil {
		return 0, 0, err
	}
	return int(peer.Uid), int(peer.Pid), nil
}
