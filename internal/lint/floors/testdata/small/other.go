//go:build never

package small

func other() { low() }
