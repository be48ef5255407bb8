package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// canary is in the environment of the tests, as secrets are in the service's.
const canary = "TRILL_TEST_CANARY=kanarienvogel"

var helper Helper

func TestMain(m *testing.M) {
	helper = Main()
	name, value, _ := strings.Cut(canary, "=")
	if os.Getenv(name) == "" {
		// Started anew, for the canary to be in /proc/PID/environ too.
		os.Setenv(name, value)
		if err := syscall.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// box is a sandbox with a workspace beside that of another session.
type box struct {
	*Sandbox
	dir, temp, sibling, outside string
}

func open(t testing.TB, conf Config) box {
	t.Helper()
	base := t.TempDir()
	b := box{
		dir: filepath.Join(base, "ws", "one"), temp: filepath.Join(base, "temp"),
		sibling: filepath.Join(base, "ws", "two"), outside: filepath.Join(base, "data"),
	}
	for _, d := range []string{b.dir, b.temp, b.sibling, b.outside} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(b.sibling, "letter"), "sibling-secret")
	write(t, filepath.Join(b.outside, "token"), "data-secret")
	s, err := New(helper, conf)
	if err != nil {
		t.Fatal(err)
	}
	b.Sandbox = s
	return b
}

// confined opens a sandbox with every layer, or skips the test.
func confined(t testing.TB) box {
	t.Helper()
	b := open(t, Config{})
	if lacks := b.Status().Lacks(); len(lacks) > 0 {
		t.Skipf("this machine lacks %v", lacks)
	}
	return b
}

// sh runs a line to its end and returns what it said and its exit code.
func (b box) sh(t testing.TB, job Job, line string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	job.Dir, job.Temp = b.dir, b.temp
	cmd, err := b.Command(ctx, job, "sh", "-c", line)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	} else if ok {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCommandsWorkInTheirFolder(t *testing.T) {
	b := confined(t)
	out, code := b.sh(t, Job{}, `pwd; echo hi > a; mkdir d; mv a d/b; cat d/b; echo $HOME; echo t > $TMPDIR/x && cat $TMPDIR/x; ls /proc/self/fd >/dev/null && echo proc; seq 3 | tail -1; exit 7`)
	want := strings.Join([]string{b.dir, "hi", b.dir, "t", "proc", "3", ""}, "\n")
	if out != want || code != 7 {
		t.Errorf("got exit %d and\n%s\nwant exit 7 and\n%s", code, out, want)
	}
}

func TestCommandsCannotReadOrWriteOutside(t *testing.T) {
	b := confined(t)
	for _, line := range []string{
		`cat ` + b.sibling + `/letter`,
		`cat ../two/letter`,
		`ls ../two`,
		`ln -s ../two/letter l; cat l`,
		`ln ../two/letter hard && cat hard`,
		`cp ` + b.outside + `/token . && cat token`,
		`ln -s / x; cat x` + b.outside + `/token`,
		`cat /etc/shadow`,
		`ls /root`, `ls /home`, `ls /var/log`,
		`cat /proc/kcore`,
		`cat /proc/1/root` + b.outside + `/token`,
		`cat /proc/$PPID/cwd/../two/letter`,
		`echo x > ` + b.sibling + `/letter`,
		`echo x > ../two/new`,
		`rm ../two/letter`,
		`mv ../two/letter .`,
		`ln -s / y; echo x > y` + b.outside + `/token`,
		`cp /etc/passwd ` + b.outside + `/`,
		`echo x > /etc/trill-was-here`, `echo x > /usr/bin/trill-was-here`, `echo x > /tmp/trill-was-here`,
		`echo x > /proc/sys/kernel/hostname`, `echo 3 > /proc/sysrq-trigger`,
		`mknod null c 1 3`,
		`chroot . true`, `mount -t tmpfs x .`, `unshare -U true`, `unshare -n true`, `nsenter -t 1 -m true`,
		`dmesg`, `hostname owned`,
	} {
		out, code := b.sh(t, Job{}, line)
		if code == 0 {
			t.Errorf("%s: succeeded with %q", line, out)
		}
		if strings.Contains(out, "secret") {
			t.Errorf("%s: shows %q", line, out)
		}
	}
	for name, want := range map[string]string{filepath.Join(b.sibling, "letter"): "sibling-secret", filepath.Join(b.outside, "token"): "data-secret"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: now %q, %v", name, got, err)
		}
	}
}

// withoutNamespaces is the sandbox of a machine that has none.
func withoutNamespaces(s *Sandbox) *Sandbox {
	status := s.Status()
	status.flags = 0
	return &Sandbox{conf: s.conf, status: func() Status { return status }}
}

func TestCommandsSeeNoVariableOfTheService(t *testing.T) {
	b := confined(t)
	shared := b
	shared.Sandbox = withoutNamespaces(b.Sandbox) // sees all processes of the machine
	out, _ := shared.sh(t, Job{}, "cat /proc/*/environ; cat /proc/"+strconv.Itoa(os.Getpid())+"/environ")
	if strings.Contains(out, "kanarien") || !strings.Contains(out, "denied") {
		t.Error("without namespaces the canary is there, or nothing was refused")
	}
	for _, mode := range []Mode{Auto, Off} {
		t.Run(string(mode), func(t *testing.T) {
			b := open(t, Config{Mode: mode})
			lines := []string{"env", "cat <<X\n$(env)\nX", "cat /proc/self/environ /proc/$PPID/environ"}
			if mode == Auto {
				if len(b.Status().Lacks()) > 0 {
					t.Skip("needs every layer")
				}
				lines = append(lines, "cat /proc/*/environ /proc/1/environ", "grep -a -r kanarien /proc/*/task/*/environ")
			}
			for _, line := range lines {
				if out, _ := b.sh(t, Job{}, line); strings.Contains(out, "kanarien") {
					t.Errorf("%s: shows the canary", line)
				}
			}
		})
	}
	// The canary is where a process that is not confined finds it.
	own, err := os.ReadFile("/proc/self/environ")
	if err != nil || !bytes.Contains(own, []byte(canary)) {
		t.Fatalf("no canary in our own environment: %v", err)
	}
}

// A66: what could lead out of any confinement is no call that can be made.
func TestDangerousSystemCallsAreRefused(t *testing.T) {
	b := confined(t)
	var script strings.Builder
	for _, nr := range deniedCalls {
		fmt.Fprintf(&script, "$r = syscall(%d,0,0,0,0,0); print \"%d gave $r, $!\\n\" unless $r == -1 && $!+0 == 1;\n", nr, nr)
	}
	fmt.Fprintf(&script, "$r = syscall(%d,%d,0,0,0,0); print \"clone gave $r, $!\\n\" unless $r == -1 && $!+0 == 1;\n", unix.SYS_CLONE, unix.CLONE_NEWUSER)
	fmt.Fprintf(&script, "$r = syscall(%d,0,%d,0); print \"TIOCSTI gave $r, $!\\n\" unless $r == -1 && $!+0 == 1;\n", unix.SYS_IOCTL, unix.TIOCSTI)
	fmt.Fprintf(&script, "$r = syscall(%d,%d,3,0); print \"socket gave $r, $!\\n\" unless $r == -1 && $!+0 == 13;\n", unix.SYS_SOCKET, unix.AF_VSOCK)
	script.WriteString("print \"done\\n\";")
	write(t, filepath.Join(b.dir, "calls.pl"), script.String())
	if out, code := b.sh(t, Job{}, "perl calls.pl"); out != "done\n" {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestCommandsHaveNoNetwork(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	connect := `perl -MIO::Socket::INET -e 'IO::Socket::INET->new("127.0.0.1:` + port + `") or die "no: $!\n"; print "connected"'`
	unixName := filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", unixName)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	abstract, err := net.Listen("unix", "@trill-test-"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	unixConnect := func(name string) string {
		return `perl -MSocket -e 'socket(S,PF_UNIX,SOCK_STREAM,0) or die "no: $!\n"; connect(S,pack_sockaddr_un("` + name + `")) or die "no: $!\n"; print "connected"'`
	}
	b := confined(t)
	if out, _ := b.sh(t, Job{Network: true}, connect); out != "connected" {
		t.Fatalf("with a network: %q, so the test proves nothing", out)
	}
	noNamespace := b
	noNamespace.Sandbox = withoutNamespaces(b.Sandbox)
	for name, b := range map[string]box{"namespace": b, "seccomp": noNamespace} {
		for _, line := range []string{connect, unixConnect(unixName), unixConnect(`\0trill-test-` + port)} {
			if out, code := b.sh(t, Job{}, line); code == 0 || !strings.HasPrefix(out, "no: ") {
				t.Errorf("%s: %s: exit %d, %q", name, line, code, out)
			}
		}
	}
	if out, code := b.sh(t, Job{Network: true}, unixConnect(unixName)); code == 0 {
		t.Errorf("a service's socket with a network: %q", out)
	}
	out, code := b.sh(t, Job{}, `perl -MIO::Socket::INET -e '
		$l = IO::Socket::INET->new(Listen=>1, LocalAddr=>"127.0.0.1:0") or die "listen: $!";
		IO::Socket::INET->new("127.0.0.1:".$l->sockport) or die "connect: $!"; print "own loopback"'`)
	if out != "own loopback" {
		t.Errorf("own loopback: exit %d, %q", code, out)
	}
}

// alive returns how many processes have the marker in their command line.
func alive(t *testing.T, marker string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range lines {
		text, _ := os.ReadFile(name)
		if bytes.Contains(text, []byte(marker)) && !bytes.HasPrefix(text, []byte(helperName)) {
			n++
		}
	}
	return n
}

func TestNothingIsLeftRunning(t *testing.T) {
	full := open(t, Config{})
	plain := full
	plain.Sandbox = withoutNamespaces(full.Sandbox)
	for name, b := range map[string]box{"namespace": full, "adopted": plain, "off": open(t, Config{Mode: Off})} {
		t.Run(name, func(t *testing.T) {
			marker := fmt.Sprintf("%d%d", 1000+len(name), os.Getpid()) // seconds that nobody else sleeps
			for _, line := range []string{
				"setsid sleep " + marker + " & echo out",
				"sleep " + marker + " & (sleep " + marker + " &) ; echo out",
				"(setsid sh -c 'setsid sleep " + marker + " & sleep " + marker + "' &) ; echo out",
			} {
				if out, code := b.sh(t, Job{}, line); code != 0 || out != "out\n" {
					t.Errorf("%s: exit %d, %q", line, code, out)
				}
				if n := alive(t, marker); n > 0 {
					t.Errorf("%s: %d processes are left", line, n)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			cmd, err := b.Command(ctx, Job{Dir: b.dir}, "sh", "-c", "trap '' TERM; setsid sleep "+marker+" & echo ready; sleep "+marker+"; sleep "+marker)
			if err != nil {
				t.Fatal(err)
			}
			ready := new(notice)
			ready.c = make(chan struct{})
			cmd.Stdout = ready
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-ready.c
			cancel()
			if err := cmd.Wait(); err == nil {
				t.Error("a cancelled command succeeded")
			}
			if n := alive(t, marker); n > 0 {
				t.Errorf("cancelled: %d processes are left", n)
			}
		})
	}
}

// notice closes c when something was written.
type notice struct {
	c    chan struct{}
	done bool
}

func (n *notice) Write(p []byte) (int, error) {
	if !n.done {
		close(n.c)
		n.done = true
	}
	return len(p), nil
}

func TestLimitsHold(t *testing.T) {
	b := open(t, Config{Limits: Limits{FileSize: 1 << 20, OpenFiles: 64, Processes: 40, CPU: time.Second, Memory: 2 << 30}})
	if len(b.Status().Lacks()) > 0 {
		t.Skip("needs every layer")
	}
	if out, code := b.sh(t, Job{}, `dd if=/dev/zero of=big bs=1M count=50`); code == 0 {
		t.Errorf("wrote a big file: %q", out)
	}
	if st, err := os.Stat(filepath.Join(b.dir, "big")); err != nil || st.Size() > 1<<20 {
		t.Errorf("the file has %v bytes, %v", st, err)
	}
	if out, _ := b.sh(t, Job{}, "ulimit -n; ulimit -c"); out != "64\n0\n" {
		t.Errorf("open files and core size are %q", out)
	}
	if out, code := b.sh(t, Job{}, "while :; do :; done"); code < 128 {
		t.Errorf("an endless loop: exit %d, %q", code, out)
	}
	if out, code := b.sh(t, Job{}, `i=0; while [ $i -lt 400 ]; do sleep 1000 & i=$((i+1)); done 2>&1; echo all`); code == 0 && strings.Contains(out, "all") {
		t.Errorf("400 processes: exit %d, %q", code, out)
	}
	if out, code := b.sh(t, Job{}, `perl -e '$x = "x" x (4<<30); print length $x'`); code == 0 {
		t.Errorf("four gigabytes: %q", out)
	}
}

func TestHiddenFilesStayHiddenBelowReadableFolders(t *testing.T) {
	base := t.TempDir()
	for _, f := range []string{"opt/tool/lib", "opt/trill/data/token", "opt/trill/doc"} {
		name := filepath.Join(base, f)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, name, f)
	}
	b := open(t, Config{Read: []string{filepath.Join(base, "opt")}, Hidden: []string{filepath.Join(base, "opt/trill/data")}})
	if len(b.Status().Lacks()) > 0 {
		t.Skip("needs every layer")
	}
	for f, readable := range map[string]bool{"opt/tool/lib": true, "opt/trill/doc": true, "opt/trill/data/token": false} {
		out, code := b.sh(t, Job{}, "cat "+filepath.Join(base, f))
		if (code == 0) != readable {
			t.Errorf("%s: exit %d, %q", f, code, out)
		}
	}
	if _, err := b.Command(t.Context(), Job{Dir: filepath.Join(base, "opt/trill")}, "true"); err == nil {
		t.Error("a workspace that holds the data folder was taken")
	}
}

func TestPrivateTemporaryFolder(t *testing.T) {
	b := confined(t)
	// Workspaces of tests are in /tmp themselves, and there it is not replaced.
	dir, err := os.MkdirTemp("/var/tmp", "trill-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	cmd, err := b.Command(t.Context(), Job{Dir: dir, Temp: b.temp}, "sh", "-c", "echo x > /tmp/y; ls /tmp; echo $TMPDIR; ls /dev/shm; echo z > /dev/shm/z && cat /dev/shm/z")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "y\n/tmp\nz\n" {
		t.Errorf("%v, %q", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(b.temp, "y")); err != nil || string(got) != "x\n" {
		t.Errorf("the file went elsewhere: %q, %v", got, err)
	}
}

func TestRequiredRefusesWhenSomethingIsMissing(t *testing.T) {
	if _, err := New(Helper{}, Config{}); err == nil {
		t.Error("a sandbox without its helper was made")
	}
	s, err := New(helper, Config{Mode: Required})
	if (err == nil) != (len(Probe(helper).Lacks()) == 0) {
		t.Errorf("required: %v, %v", s, err)
	}
	if got := len((Status{}).Lacks()); got != 4 {
		t.Errorf("a machine with nothing lacks %d things, want 4", got)
	}
}

func TestUnknownPrograms(t *testing.T) {
	b := open(t, Config{})
	cmd, err := b.Command(t.Context(), Job{Dir: b.dir}, "no-such-program")
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 127 || !strings.Contains(string(out), "no such program") {
		t.Errorf("%v, %q", err, out)
	}
}

func BenchmarkSpawn(b *testing.B) {
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("sh", "-c", "true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, mode := range []Mode{Off, Auto} {
		b.Run(string(mode), func(b *testing.B) {
			box := open(b, Config{Mode: mode})
			for b.Loop() {
				cmd, err := box.Command(b.Context(), Job{Dir: box.dir, Temp: box.temp}, "sh", "-c", "true")
				if err != nil {
					b.Fatal(err)
				}
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
