package tool

// Builtin returns the tools of this package, sorted by name.
func Builtin(conf ShellConfig) []Tool {
	return []Tool{EditFile(), ListDir(), ReadFile(), Search(), Shell(conf), WriteFile()}
}
