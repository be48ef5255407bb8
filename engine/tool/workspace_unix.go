//go:build unix

package tool

import (
	"io/fs"
	"os"
	"syscall"
)

// links returns how many names a file has.
func links(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}

// keepOwner gives f the owner of the file it takes the place of. Only root can;
// for others the owner is the same, or has to change.
func keepOwner(f *os.File, was fs.FileInfo) {
	if st, ok := was.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(st.Uid), int(st.Gid))
	}
}
