package permission

import "strings"

// This file is what is known about programs. It is all tables; inspect.go looks
// things up in them. What is not in a table is a program whose arguments mean
// nothing in particular.

// harmless are programs that only read and print, whatever their arguments.
var harmless = set(`
	basename cat cmp cut df dirname du echo egrep fgrep grep head id ls md5sum nl pwd readlink realpath rev
	seq sha1sum sha256sum sleep stat tac tail tr type uname wc which whoami`)

// stateful are commands of the shell that change what later commands mean, or
// run text.
var stateful = set(`
	. alias bind complete declare enable eval export fc getopts hash let local mapfile nameref read readarray
	readonly set shopt source trap typeset unalias unset`)

func set(names string) map[string]bool {
	m := map[string]bool{}
	for _, n := range strings.Fields(names) {
		m[n] = true
	}
	return m
}

// assignment returns why setting a variable in the shell is not allowed to go
// without notice; empty if it may.
func assignment(name string) string {
	switch name {
	case "", "PATH", "IFS", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "CDPATH", "HOME",
		"SHELL", "TMPDIR", "LESSOPEN", "LESSCLOSE", "BROWSER", "MAKEFLAGS", "CC", "CXX", "LD", "RUSTC_WRAPPER",
		"CLASSPATH", "LOCPATH", "TERMINFO", "GLOBIGNORE", "POSIXLY_CORRECT", "OPTIND":
		return whyVariable
	}
	upper := strings.ToUpper(name)
	for _, prefix := range []string{
		"LD_", "DYLD_", "GIT_", "BASH_", "PYTHON", "PERL", "RUBY", "NODE_", "NPM_", "JAVA_", "JDK_", "GO", "CARGO",
		"SSH_", "GCONV_", "MALLOC_", "XDG_", "DOCKER_", "PIP_",
	} {
		if strings.HasPrefix(upper, prefix) {
			return whyVariable
		}
	}
	for _, suffix := range []string{"PAGER", "EDITOR", "VISUAL", "_PROXY", "OPTIONS", "_OPTS", "ASKPASS"} {
		if strings.HasSuffix(upper, suffix) {
			return whyVariable
		}
	}
	return ""
}

// localeVariable reports whether a variable may be set for any command: it
// changes how things are printed.
func localeVariable(name string) bool {
	switch name {
	case "LANG", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_NUMERIC", "LC_TIME", "TZ", "NO_COLOR", "COLUMNS", "CI":
		return true
	}
	return false
}

// wrapper is a program that is there to run another.
type wrapper struct {
	flags   string // options without a value
	values  string // options whose value is the next word
	scripts string // options whose value is shell text
	skip    int    // words before the command
	assigns bool   // NAME=value may come before the command
	shell   bool   // a shell: it runs text, a file, or what it reads
	text    bool   // what follows is shell text
	appends bool   // it adds arguments of its own
	bare    string // what it does without a command, if that is harmless
}

var wrappers = map[string]wrapper{
	"sh": shell, "bash": shell, "dash": shell, "ash": shell, "zsh": shell, "ksh": shell, "mksh": shell, "fish": shell,
	"rbash": shell, "csh": shell, "tcsh": shell,

	"busybox": {}, "toybox": {}, "builtin": {}, "nohup": {}, "setsid": {flags: "-c -f -w"},
	"command": {flags: "-p"}, "exec": {flags: "-c -l", values: "-a"},
	"env": {flags: "- -i -0 -v --ignore-environment --null --debug", values: "-u -C --unset --chdir",
		scripts: "-S --split-string", assigns: true, bare: "prints"},
	"sudo": {flags: "-n -E -H -S -b -k -A -P --non-interactive --preserve-env --set-home",
		values:  "-u -g -h -p -C -r -t -T -U -D -R --user --group --host --prompt --chdir --chroot --role --type --other-user",
		assigns: true},
	"doas": {flags: "-n -s", values: "-u -C"}, "pkexec": {values: "--user"},
	"su":      {flags: "- -l --login -m -p", values: "-s -g -G --shell --group", scripts: "-c --command", skip: 1},
	"runuser": {flags: "-l --login", values: "-u -g -G -s --user --group --shell", scripts: "-c --command"},
	"nice":    {values: "-n --adjustment", bare: "prints"},
	"ionice":  {flags: "-t --ignore", values: "-c -n --class --classdata"},
	"chrt":    {flags: "-b -f -i -o -r", skip: 1}, "taskset": {flags: "-c --cpu-list", skip: 1},
	"timeout": {flags: "-v --foreground --preserve-status --verbose -f -p", values: "-k -s --kill-after --signal", skip: 1},
	"time":    {flags: "-p -v -a --verbose --portability --append", values: "-f -o --format --output", bare: "prints"},
	"stdbuf":  {values: "-i -o -e --input --output --error"}, "unbuffer": {flags: "-p"},
	"chroot": {skip: 1}, "unshare": {flags: "-m -u -i -n -p -U -C -f -r -c"}, "nsenter": {values: "-t --target"},
	"strace": {flags: "-f -ff -c -q -y -v -T -tt -t -r", values: "-e -o -p -s -u -E -P"}, "ltrace": {flags: "-f -c -S", values: "-e -o -p -s -u -l"},
	"script": {flags: "-q -a -e -f -t", scripts: "-c --command"},
	"flock":  {flags: "-s -x -e -n -u -o -v -F", values: "-w -E --timeout --wait --conflict-exit-code", scripts: "-c --command", skip: 1},
	"watch":  {flags: "-d -t -b -e -g -c -x -p", values: "-n --interval", text: true},
	"ssh":    {flags: "-4 -6 -A -a -C -f -G -g -K -k -M -N -n -q -s -T -t -V -v -X -x -Y -y", values: "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", skip: 1, text: true},
	"xargs": {flags: "-0 -r -t -p -x -o --null --no-run-if-empty --verbose --interactive --exit",
		values:  "-n -P -I -L -s -d -a -E --max-args --max-procs --replace --max-lines --max-chars --delimiter --arg-file",
		appends: true, bare: "prints"},
	"parallel":    {flags: "-k -0 -m -X --keep-order --null --dry-run", values: "-j -n -a -S --jobs", text: true, appends: true},
	"systemd-run": {flags: "-q -t -P --user --scope --wait --pipe --pty", values: "-p -u --property --unit"},
	"entr":        {flags: "-c -d -n -p -r -s -z", appends: true},
	"catchsegv":   {}, "faketime": {skip: 1}, "firejail": {}, "proot": {}, "fakeroot": {}, "dbus-run-session": {},
	"npx": {flags: "-y --yes -q"}, "uvx": {}, "pipx": {skip: 1},
}

var shell = wrapper{shell: true, scripts: "-c", values: "-o -O +o +O --rcfile --init-file",
	flags: "-e -x -u -l -i -s -n -v --login --posix --norc --noprofile"}

// program is what a program can be told to do besides its purpose.
type program struct {
	// options are those that write, delete, connect, or run something: -o also
	// in -xo and -ofile, --output also as --out and --output=x; a word without
	// a dash as that word, one with a * at its end as the beginning of a word.
	options string
	// exact is for programs that have long options with one dash.
	exact bool
	// interpreter runs its input when it is given no file.
	interpreter bool
}

// anyProgram is what options with these names mean wherever they occur.
var anyProgram = program{options: `
	--output --output-file --output-dir --output-directory --outfile --outdir --exec --exec-batch --execute --eval
	--in-place --inplace --write --overwrite --delete --remove --fix --pager --editor --to-command --use-compress-program
	--command --ext-diff --plugin --load --upload-pack --receive-pack`}

var programs = map[string]program{
	// Files
	"find":  {options: "-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls -files0-from", exact: true},
	"fd":    {options: "-x -X --exec --exec-batch"},
	"tree":  {options: "-o -R"},
	"tar":   {options: "-I -F -P --to-command --checkpoint-action --use-compress-program --rsh-command --rmt-command --info-script --new-volume-script --absolute-names --remove-files --index-file"},
	"zip":   {options: "-m -T --move --test --unzip-command"},
	"unzip": {options: "-o -d -:"},
	"rsync": {options: "-e --rsh --rsync-path --delete --del --delete-before --delete-after --delete-during --delete-excluded --remove-source-files --log-file --write-batch --only-write-batch --backup-dir"},
	"dd":    {options: "of=*"},
	"split": {options: "--filter"},
	"file":  {options: "-C -m --compile --magic-file"},
	"tee":   {}, "uniq": {}, "xxd": {options: "-r"},

	// Text
	"rg":    {options: "--pre --hostname-bin --search-zip -z"},
	"ag":    {options: "--pager"},
	"ack":   {options: "--pager --output --ackrc"},
	"sort":  {options: "-o -T --output --compress-program --temporary-directory --files0-from"},
	"shuf":  {options: "-o --output"},
	"sed":   {options: "-i -f --in-place --file"},
	"gsed":  {options: "-i -f --in-place --file"},
	"awk":   awk,
	"gawk":  awk,
	"mawk":  awk,
	"nawk":  awk,
	"diff":  {options: "--output"},
	"patch": {options: "-o -r -d -i -B -z --output --reject-file --directory --ed"},
	"iconv": {options: "-o --output"},
	"jq":    {options: "-f -L --from-file"},
	"yq":    {options: "-i -s --inplace --split-exp"},
	"less":  {options: "-o -O -k --log-file --LOG-FILE --lesskey-file +*"},
	"more":  {options: "+*"},
	"man":   {options: "-P -H -C --pager --html --config-file"},
	"date":  {options: "-s --set"},
	"vim":   vim, "vi": vim, "nvim": vim, "view": vim, "ex": vim,
	"ed": {interpreter: true}, "emacs": {options: "--eval -f -l --funcall --load --script"},

	// Version control
	"git": {options: `--output --ext-diff --textconv --filters --no-index --upload-pack --receive-pack --upload-archive --open-files-in-pager
		--exec --extcmd --template --edit --edit-description --output-directory --work-tree --git-dir --exec-path`},
	"hg":  {options: "--config --repository --cwd -R"},
	"svn": {options: "--config-option --config-dir --diff-cmd --diff3-cmd --editor-cmd"},

	// Building
	"go": {options: `-exec -toolexec -vettool -modfile -overlay -C -o -w -u -ldflags -gcflags -asmflags -gccgoflags -pkgdir -coverprofile
		-cpuprofile -memprofile -blockprofile -mutexprofile -trace -outputdir -test.*`, exact: true},
	"gofmt": {options: "-w -cpuprofile", exact: true}, "goimports": {options: "-w", exact: true},
	"gofumpt": {options: "-w", exact: true}, "shfmt": {options: "-w --write"},
	"golangci-lint": {options: "--fix --config -c"},
	"make":          {options: "-f -C -I -E --file --makefile --directory --include-dir --eval SHELL=* MAKEFLAGS=*"},
	"cmake":         {options: "-P -E -C"}, "ninja": {options: "-C -f -t"},
	"gcc": compiler, "cc": compiler, "g++": compiler, "clang": compiler, "clang-format": {options: "-i", exact: true},
	"cargo":  {options: "--config --fix --target-dir --manifest-path"},
	"npm":    {options: "--prefix --script-shell --node-options --globalconfig --userconfig -C exec x"},
	"yarn":   {options: "--cwd --use-yarnrc exec dlx"},
	"pnpm":   {options: "--dir -C exec dlx"},
	"eslint": {options: "--fix --output-file -o --rulesdir --resolve-plugins-relative-to --config -c"}, "prettier": {options: "--write -w --plugin --config"},
	"ruff": {options: "--fix --config"}, "pytest": {options: "-p -c -o --rootdir --override-ini --basetemp"},
	"pip": {options: "--target -t --index-url -i --extra-index-url --find-links"}, "terraform": {options: "-chdir", exact: true},

	// Interpreters
	"python":  {options: "-c -i -X -", interpreter: true},
	"python3": {options: "-c -i -X -", interpreter: true},
	"perl":    {options: "-e -E -i -I -m -M -x -d", interpreter: true},
	"ruby":    {options: "-e -i -I -r -x", interpreter: true},
	"node":    {options: "-e -p -r -i --eval --print --require --import --loader --experimental-loader", interpreter: true},
	"deno":    {options: "eval repl -A --allow-all --allow-run --allow-write --allow-net"},
	"bun":     {options: "-e -p -r --eval --print --preload x exec"},
	"php":     {options: "-r -B -R -E -F -d -c -z", interpreter: true},
	"lua":     {options: "-e -l -i", interpreter: true},
	"sqlite3": {options: "-cmd -init -A", exact: true, interpreter: true},
	"psql":    {options: "-c -f -o -L -v --command --file --output --log-file", interpreter: true},
	"mysql":   {options: "-e --execute --tee --pager", interpreter: true},
	"m4":      {options: "-D -I --define", interpreter: true},

	// Network
	"curl": {options: `-o -O -J -D -K -T -d -F -X -c -x -E -w -u -b --output --remote-name --remote-name-all --remote-header-name --dump-header
		--config --upload-file --data --data-raw --data-binary --data-urlencode --data-ascii --json --form --form-string --request
		--cookie-jar --cookie --proxy --preproxy --write-out --trace --trace-ascii --stderr --libcurl --etag-save --hsts --alt-svc
		--output-dir --create-dirs --unix-socket --abstract-unix-socket --engine --cert --key --user --netrc-file`},
	"wget": {options: `-O -o -a -P -e -i -U --output-document --output-file --append-output --directory-prefix --execute --input-file
		--use-askpass --post-data --post-file --method --body-data --body-file --config --warc-file --save-cookies --rejected-log`},
	"scp": {options: "-S -F -o -J"}, "sftp": {options: "-S -F -o -b -D"},
	"openssl": {options: "-out -engine -provider -keyout -writerand", exact: true},
	"gpg":     {options: "-o --output --delete-keys --delete-secret-keys --photo-viewer --keyserver"},

	// System
	"journalctl": {options: "--vacuum-size --vacuum-time --vacuum-files --rotate --flush --cursor-file"},
	"dmesg":      {options: "-c -C -D -E -n --clear --read-clear"},
	"kubectl":    {options: "--kubeconfig --server --token exec cp --as"},
	"docker":     {options: "-H --host --config -v --volume --mount --privileged --device --pid --cap-add"},
}

var (
	awk      = program{options: "-f -i -l -E -o -p -d -D --file --include --load --exec --pretty-print --profile --dump-variables --debug"}
	vim      = program{options: "-c -S -s -u -w -W -E -e --cmd +*"}
	compiler = program{options: "-o -B -wrapper -fplugin -specs -save-temps -MF -dumpdir @*", exact: true}
)

// gitCommands are what git's commands can be told to do besides their purpose.
var gitCommands = map[string]program{
	"branch": {options: `-d -D -m -M -c -C -f -u -t --delete --move --copy --force --set-upstream-to --unset-upstream
		--edit-description --track --create-reflog`},
	"tag":          {options: "-d -f -a -s -m -u -F --delete --force --annotate --sign --message --file --local-user"},
	"remote":       {options: "add remove rm rename set-url set-head set-branches prune update"},
	"reflog":       {options: "expire delete drop write"},
	"stash":        {options: "drop clear"},
	"notes":        {options: "add append copy edit merge prune remove"},
	"worktree":     {options: "add remove move prune lock unlock repair"},
	"submodule":    {options: "add deinit foreach set-url set-branch sync absorbgitdirs"},
	"bisect":       {options: "run"},
	"grep":         {options: "-O --open-files-in-pager"},
	"archive":      {options: "-o --output --exec --remote"},
	"format-patch": {options: "-o --output-directory"},
	"difftool":     {options: "-x -t --extcmd --tool"},
	"mergetool":    {options: "-t --tool"},
	"rebase":       {options: "-x -i --exec --interactive"},
	"clone":        {options: "-c -u --config --upload-pack --template"},
	"init":         {options: "--template --separate-git-dir"},
	"fetch":        {options: "-f --force --upload-pack --prune --prune-tags"},
	"pull":         {options: "-f --force --upload-pack"},
	"ls-remote":    {options: "--upload-pack --exec"},
	"push":         {options: "-f -d --force --force-with-lease --delete --mirror --prune --receive-pack --exec +* :*"},
	"clean":        {options: "-x -X"},
	"checkout":     {options: "-f -B --force"},
	"symbolic-ref": {options: "-d -m --delete"},
	"hash-object":  {options: "-w"},
	"rev-parse":    {options: "--parseopt"},
	"commit":       {options: "-F -C -c -t --file --template --amend --no-verify -n"},
	"am":           {options: "--directory"}, "apply": {options: "--directory --unsafe-paths"},
	"send-email": {options: "--smtp-server --sendmail-cmd --to-cmd --cc-cmd --header-cmd"},
	"config":     {options: "-e --edit --add --unset --unset-all --replace-all --rename-section --remove-section --file -f --blob"},
}
