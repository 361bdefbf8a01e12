package embedded

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// checkPeer returns an error if the process at the other end is neither this user's, nor the folder owner's, nor
// root's.
func checkPeer(c net.Conn, path string) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("embedded: peer: %w", errors.ErrUnsupported)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var peer *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("embedded: peer: %w", err)
	}
	uid := int(peer.Uid)
	if uid == os.Geteuid() || uid == 0 {
		return nil
	}
	if of, err := owner(path + "/."); err != nil || uid != of {
		return fmt.Errorf("embedded: peer is user %d: %w", uid, syscall.EPERM)
	}
	return nil
}
