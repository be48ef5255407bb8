package tool

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"
)

// maxPath bounds a path, in bytes.
const maxPath = 4096

const outside = "it is outside the workspace, which is all that can be reached; give a path relative to it"

// errChanged means that somebody else wrote the file in the meantime.
var errChanged = errors.New("it was changed by something else just now; read it again")

// errMessage is a refusal whose text the model may read as it is.
type errMessage string

func (e errMessage) Error() string { return string(e) }

// place turns what a model gave as a path into one inside the workspace. The
// root does not let anything leave it in any case; this is for a clear answer.
func place(env Env, p string) (string, error) {
	switch {
	case p == "":
		return "", errMessage("it is empty")
	case len(p) > maxPath:
		return "", errMessage(fmt.Sprintf("it has %d bytes, more than %d", len(p), maxPath))
	case strings.ContainsRune(p, 0) || !utf8.ValidString(p):
		return "", errMessage("it holds bytes that no path has")
	case strings.Contains(p, "://") || strings.HasPrefix(strings.ToLower(p), "file:"):
		return "", errMessage("it is a URL; give a path relative to the workspace")
	case p == "~" || strings.HasPrefix(p, "~/"):
		return "", errMessage(outside)
	}
	if filepath.IsAbs(p) {
		dir := filepath.Clean(env.Dir)
		rel, err := filepath.Rel(dir, filepath.Clean(p))
		if env.Dir == "" || err != nil {
			return "", errMessage(outside)
		}
		p = rel
	}
	p = filepath.Clean(p)
	if !filepath.IsLocal(p) {
		return "", errMessage(outside)
	}
	return p, nil
}

// refuse is the result of a call whose path, as it was given, led to err.
func refuse(verb, p string, err error) Result {
	return Failure(fmt.Sprintf("Cannot %s %q: %s.", verb, clipText(p, 200), reason(err)))
}

// reason says why a file could not be used, without a path of the host.
func reason(err error) string {
	var m errMessage
	switch {
	case errors.As(err, &m):
		return string(m)
	case errors.Is(err, errChanged):
		return errChanged.Error()
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file or folder"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	case errors.Is(err, syscall.ELOOP):
		return "its symbolic links lead in a circle"
	case errors.Is(err, syscall.ENOTDIR):
		return "a part of the path is a file, not a folder"
	case errors.Is(err, syscall.EISDIR):
		return "it is a folder"
	case errors.Is(err, syscall.ENAMETOOLONG):
		return "a name in it is too long"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "the disk is full"
	case errors.Is(err, syscall.EROFS):
		return "the disk is read-only"
	case errors.Is(err, syscall.ENXIO):
		return "it is a pipe or socket, not a file"
	case strings.Contains(err.Error(), "escapes"): // os.Root has no error to compare with
		return outside
	}
	return "the file system refused it"
}

// kindName names what is not a regular file.
func kindName(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// openFile opens a regular file for reading. It never waits, and a device is not
// even opened, unless it took a file's place in the last moment.
func openFile(r *os.Root, name string) (*os.File, fs.FileInfo, error) {
	info, err := r.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errMessage("it is " + kindName(info.Mode()) + ", not a file")
	}
	f, err := r.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = errMessage("it is " + kindName(info.Mode()) + ", not a file")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// readWhole reads a regular file of at most limit bytes.
func readWhole(r *os.Root, name string, limit int64) ([]byte, error) {
	f, _, err := openFile(r, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, errMessage(fmt.Sprintf("it has more than %s", size(limit)))
	}
	return text, nil
}

// sniffed is how much of a file tells what it is.
const sniffed = 8000

// binaryKind names the kind of a file that is not text, by its first bytes;
// empty for text.
func binaryKind(head []byte) string {
	if bytes.HasPrefix(head, []byte{0xff, 0xfe}) || bytes.HasPrefix(head, []byte{0xfe, 0xff}) {
		return "UTF-16 text"
	}
	kind, _, _ := strings.Cut(http.DetectContentType(head), ";")
	if strings.HasPrefix(kind, "text/") && bytes.IndexByte(head, 0) < 0 {
		return ""
	}
	if bytes.IndexByte(head, 0) < 0 && utf8.Valid(trimRune(head)) && kind == "application/octet-stream" {
		return "" // control characters alone do not make it binary
	}
	if bytes.HasPrefix(head, []byte("\x7fELF")) {
		kind = "ELF program"
	}
	return kind
}

// trimRune takes an incomplete character off the end.
func trimRune(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// writable opens the folder of a file that is to be written, and says what is
// there now; info is nil when nothing is.
func writable(env Env, name string) (dir *os.Root, base string, info fs.FileInfo, err error) {
	if name == "." {
		return nil, "", nil, errMessage("it is a folder")
	}
	// From here on one and the same folder, whatever becomes of its path.
	if dir, err = env.Root.OpenRoot(filepath.Dir(name)); err != nil {
		return nil, "", nil, err
	}
	base = filepath.Base(name)
	info, err = dir.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dir, base, nil, nil
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		err = errMessage("it is a symbolic link; name the file it points to")
	case !info.Mode().IsRegular():
		err = errMessage("it is " + kindName(info.Mode()) + ", not a file")
	case links(info) > 1:
		err = errMessage("it has other names (hard links), which may be outside the workspace")
	}
	if err != nil {
		dir.Close()
		return nil, "", nil, err
	}
	return dir, base, info, nil
}

// replace puts a file with this text in the place of base, in one step. was is
// what stands there and old its text; was is nil when nothing may be there.
func replace(dir *os.Root, base string, text []byte, was fs.FileInfo, old []byte) (err error) {
	var random [8]byte
	rand.Read(random[:])
	temp := ".trill-" + hex.EncodeToString(random[:]) + ".tmp"
	mode := fs.FileMode(0o644)
	if was != nil {
		mode = was.Mode().Perm()
	}
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			dir.Remove(temp)
		}
	}()
	if _, err = f.Write(text); err != nil {
		return err
	}
	if was != nil {
		keepOwner(f, was)
		if err = f.Chmod(mode); err != nil { // the umask took some away
			return err
		}
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if was == nil {
		// Link, unlike rename, leaves alone what came there meanwhile.
		switch err = dir.Link(temp, base); {
		case err == nil:
			return dir.Remove(temp)
		case errors.Is(err, fs.ErrExist):
			return errChanged
		}
		return dir.Rename(temp, base) // a file system without links
	}
	if now, err := readWhole(dir, base, int64(len(old))); err != nil || !bytes.Equal(now, old) {
		return errChanged
	}
	return dir.Rename(temp, base)
}

// size writes a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// clipText shortens a text to at most limit bytes and a mark.
func clipText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "..."
}

// slashed is a path as it is shown and matched.
func slashed(name string) string { return path.Clean(filepath.ToSlash(name)) }
