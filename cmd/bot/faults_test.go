package main

import (
	"database/sql"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trill/adapters/nextcloudtalk/talktest"
)

// TestLockedDatabaseIsNotAcknowledged is F4: while another program has the
// database locked, webhooks are refused in time, and nothing that was taken is
// lost.
func TestLockedDatabaseIsNotAcknowledged(t *testing.T) {
	s := newService(t, "")
	s.start()
	s.say("room1", "alice", "@trill first")
	s.await("first")
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "data", "trill.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	d, err := s.cloud.Post(t.Context(), "room1", "users/alice", "@trill second", talktest.PostOptions{})
	if err != nil || d.Status != http.StatusServiceUnavailable {
		t.Errorf("while locked: %d %v", d.Status, err)
	}
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if d, err := s.cloud.DeliverAs(t.Context(), d.Header, d.Body); err != nil || d.Status != http.StatusOK {
		t.Errorf("afterwards: %d %v", d.Status, err)
	}
	s.await("second")
	s.settled()
	if got := s.posted("room1"); len(got) != 2 {
		t.Errorf("posted %q", got)
	}
}

// TestFullDiskIsNotAcknowledged is F3 on a small file system of its own: refused
// while it is full, taken when there is room again, nothing lost, nothing twice.
func TestFullDiskIsNotAcknowledged(t *testing.T) {
	s := newService(t, "")
	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", data).CombinedOutput(); err != nil {
		t.Skipf("needs to mount a small file system, which takes root: %s", out)
	}
	t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		if out, err := exec.Command("umount", data).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	})
	s.start()
	s.say("room1", "alice", "@trill before")
	s.await("before")
	filler := filepath.Join(data, "filler")
	fill(t, filler)
	var refused talktest.Delivery
	for i := 0; refused.Body == nil; i++ {
		d, err := s.cloud.Post(t.Context(), "room1", "users/alice", "@trill "+strings.Repeat("long ", 4000), talktest.PostOptions{})
		switch {
		case err != nil:
			t.Fatal(err)
		case d.Status == http.StatusServiceUnavailable:
			refused = d
		case d.Status != http.StatusOK || i > 2000:
			t.Fatalf("status %d at message %d", d.Status, i)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		d, err := s.cloud.DeliverAs(t.Context(), refused.Header, refused.Body)
		if err == nil && d.Status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with room again: %d %v", d.Status, err)
		}
	}
	s.say("room2", "bob", "@trill after")
	s.await("after")
	s.quiet()
	s.settled()
	seen := map[string]bool{}
	for _, p := range s.cloud.Messages("room1") {
		if seen[p.ReferenceID] {
			t.Errorf("posted twice: %.40q", p.Text)
		}
		seen[p.ReferenceID] = true
	}
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = io.Copy(f, zeroes{})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestSecondServiceOnTheSameDataRefuses is F18.
func TestSecondServiceOnTheSameDataRefuses(t *testing.T) {
	s := newService(t, "")
	s.start()
	if out, code := s.bot("serve"); code != 1 || !strings.Contains(out, "another Trill runs on this data folder") {
		t.Errorf("code %d, output\n%s", code, out)
	}
	s.say("room1", "alice", "@trill hello")
	s.await("hello")
	s.settled()
}
