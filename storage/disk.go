package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
)

// takeLock makes this process the one that serves the data folder. The lock ends
// with the process, however that ends.
func takeLock(path string) (_ *os.File, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		pid := make([]byte, 20)
		n, _ := f.ReadAt(pid, 0) // only a help for people
		if who := strings.TrimSpace(string(pid[:n])); who != "" {
			return nil, fmt.Errorf("%w (process %s)", ErrInUse, who)
		}
		return nil, ErrInUse
	} else if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// Who has the lock matters, not what the file says: on a full disk it may
	// stay empty.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// disk knows whether there is room. When there is none it gives up the ballast,
// which lets the service finish and record what is under way: on a full disk not
// even a row can be deleted.
type disk struct {
	dir     string
	size    int64
	recheck time.Duration
	log     *slog.Logger
	now     func() time.Time

	mu     sync.Mutex // guards what follows
	short  bool
	looked time.Time // when room was last looked for
}

func newDisk(conf Config, log *slog.Logger, now func() time.Time) *disk {
	d := &disk{dir: conf.Dir, size: conf.Ballast, recheck: conf.Recheck, log: log, now: now}
	if err := d.reserve(); err != nil {
		d.short, d.looked = true, now()
		log.Error("no room for the reserve; new messages are refused until there is", "err", err)
	}
	return d
}

// isFull reports whether an error of SQLite means that there is no room. Where it
// cannot grow a file other than by writing, it reports a failed disk instead.
func (d *disk) isFull(err error) bool {
	switch code(err) & 0xff {
	case sqlite3.SQLITE_FULL:
		return true
	case sqlite3.SQLITE_IOERR:
		left, err := free(d.dir)
		return err == nil && left < 1<<20
	}
	return false
}

// release gives up the ballast and reports whether there was one.
func (d *disk) release() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.short {
		d.log.Error("disk is full; new messages are refused until there is room", "dir", d.dir)
	}
	d.short, d.looked = true, d.now()
	return os.Remove(d.ballast()) == nil
}

// full returns ErrFull until there is room for the ballast again, and some more.
func (d *disk) full() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.short {
		return nil
	}
	if d.now().Sub(d.looked) < d.recheck {
		return ErrFull
	}
	d.looked = d.now()
	if err := d.reserve(); err != nil {
		return fmt.Errorf("%w (%w)", ErrFull, err)
	}
	d.short = false
	d.log.Info("there is room on the disk again")
	return nil
}

func (d *disk) ballast() string { return filepath.Join(d.dir, ballastName) }

// reserve makes the ballast.
func (d *disk) reserve() error {
	if d.size == 0 {
		return nil
	}
	if info, err := os.Stat(d.ballast()); err == nil && info.Size() == d.size {
		return nil
	}
	if left, err := free(d.dir); err == nil && left < d.size+d.size/4 {
		return fmt.Errorf("%d MB free, %d needed", left>>20, (d.size+d.size/4)>>20)
	}
	f, err := os.OpenFile(d.ballast(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err = allocate(f, d.size); errors.Is(err, errors.ErrUnsupported) {
		err = fill(f, d.size)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(d.ballast()))
	}
	return nil
}

// fill writes bytes that no file system can compress or share.
func fill(f *os.File, size int64) error {
	block := make([]byte, 1<<20)
	noise := rand.NewChaCha8([32]byte{})
	for left := size; left > 0; left -= int64(len(block)) {
		block = block[:min(left, int64(len(block)))]
		if _, err := noise.Read(block); err != nil {
			return err
		}
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return f.Sync()
}
