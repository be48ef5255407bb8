package storage_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trill/pipeline"
	"trill/storage"
)

// mount returns a small disk of its own.
func mount(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("needs the right to mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFolderOnAReadOnlyDisk(t *testing.T) {
	dir := mount(t, "size=8m")
	must(t, start(t, storage.Config{Dir: dir}).Close())
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=8m"))
	refused(t, storage.Config{Dir: dir}, storage.ErrNotWritable)
}

func TestFullDisk(t *testing.T) { // F3
	dir := mount(t, "size=12m")
	data := filepath.Join(dir, "data")
	filler := filepath.Join(dir, "filler")
	must(t, os.WriteFile(filler, make([]byte, 4<<20), 0o600))
	conf := storage.Config{Dir: data, Ballast: 2 << 20, Recheck: time.Nanosecond}
	db := start(t, conf)
	ballast := filepath.Join(data, "ballast")
	info, err := os.Stat(ballast)
	must(t, err)
	if blocks := info.Sys().(*syscall.Stat_t).Blocks; info.Size() != 2<<20 || blocks*512 < 2<<20 {
		t.Errorf("ballast has %d bytes in %d blocks", info.Size(), blocks)
	}

	// Accept until the disk is full.
	var mu sync.Mutex
	acked := map[string]pipeline.InboxID{}
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				r := row(strconv.Itoa(c) + "-" + strconv.Itoa(n))
				r.Message.Text = strings.Repeat("x", 2000)
				ids, err := db.Accept(t.Context(), []pipeline.InboxRow{r})
				if err != nil {
					if !errors.Is(err, storage.ErrFull) {
						t.Errorf("accept: %v, want %v", err, storage.ErrFull)
					}
					return
				}
				mu.Lock()
				acked[string(r.Message.ID)] = ids[0]
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := db.Degraded(); !errors.Is(err, storage.ErrFull) {
		t.Errorf("degraded: %v, want %v", err, storage.ErrFull)
	}
	if _, err := os.Stat(ballast); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ballast is still there: %v", err)
	}

	// What is under way can be finished and read.
	settled := 0
	for id, n := range acked {
		if settled++; settled > 20 {
			break
		}
		must(t, db.Settle(t.Context(), pipeline.Settle{Row: n, State: pipeline.Done, Reason: "finished"}))
		delete(acked, id)
	}
	check := func(db *storage.DB) {
		t.Helper()
		got := stored(t, db)
		for id := range acked {
			if !got[id] {
				t.Errorf("message %s was acknowledged and is missing", id)
			}
		}
		must(t, db.Integrity(t.Context()))
	}
	check(db)

	// With room again it goes on by itself.
	must(t, os.Remove(filler))
	must(t, db.Degraded())
	accept(t, db, "after")
	if _, err := os.Stat(ballast); err != nil {
		t.Errorf("the ballast is not there again: %v", err)
	}
	must(t, db.Close())
	check(open(t, conf))
}

func TestStartOnAFullDisk(t *testing.T) {
	dir := mount(t, "size=8m")
	must(t, start(t, storage.Config{Dir: dir}).Close())
	must(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 5<<20), 0o600))
	db := open(t, storage.Config{Dir: dir, Ballast: 4 << 20})
	if _, err := db.Accept(t.Context(), []pipeline.InboxRow{row("1")}); !errors.Is(err, storage.ErrFull) {
		t.Errorf("accept: %v, want %v", err, storage.ErrFull)
	}
	must(t, db.LiftBlock(t.Context(), "cloud", ""))
}
