; The installer for Windows: for the user who runs it, without administrator's rights, into a folder of his own. Models, chats and
; settings are not the installer's and stay when the program goes. Made by makensis on Linux:
;   makensis -DVERSION=1.2.3 -DPROGRAMS=/FOLDER -DOUT=/PATH/thermocline_1.2.3_x64-setup.exe packaging/windows/installer.nsi
; FOLDER holds thermocline.exe and thermocline-server.exe.
; Silent: setup.exe /S [/D=C:\folder]; uninstall.exe /S
; Of 64 bits like the program, so that nothing is needed that runs others. Debian's and Ubuntu's makensis has it.
Target amd64-unicode
SetCompressor /SOLID lzma
ManifestDPIAware true

!include MUI2.nsh
!include LogicLib.nsh
!include FileFunc.nsh

!define KEY "Software\Microsoft\Windows\CurrentVersion\Uninstall\org.thermocline.Thermocline"
; makensis works in the folder of this file.
!define ROOT "../.."

Name "Thermocline"
OutFile "${OUT}"
RequestExecutionLevel user
InstallDir "$LOCALAPPDATA\Programs\Thermocline"
InstallDirRegKey HKCU "${KEY}" "InstallLocation"
BrandingText "Thermocline ${VERSION}"

VIProductVersion "${VERSION}.0"
VIAddVersionKey "ProductName" "Thermocline"
VIAddVersionKey "FileDescription" "Installs Thermocline"
VIAddVersionKey "FileVersion" "${VERSION}"
VIAddVersionKey "ProductVersion" "${VERSION}"
VIAddVersionKey "CompanyName" "The Thermocline authors"
VIAddVersionKey "LegalCopyright" "Copyright The Thermocline authors; Apache-2.0 or MIT"

!define MUI_ICON "${ROOT}/assets/icon/thermocline.ico"
!define MUI_UNICON "${ROOT}/assets/icon/thermocline.ico"
!define MUI_FINISHPAGE_RUN "$INSTDIR\thermocline.exe"
!insertmacro MUI_PAGE_LICENSE "${ROOT}/LICENSE-MIT"
!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_INSTFILES
!insertmacro MUI_PAGE_FINISH
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"

; Windows does not overwrite a program that runs, but renames it. The next restart deletes the renamed file.
!macro MoveAside NAME
  Delete "$INSTDIR\${NAME}.old"
  ${If} ${FileExists} "$INSTDIR\${NAME}.exe"
    Rename "$INSTDIR\${NAME}.exe" "$INSTDIR\${NAME}.old"
    Delete /REBOOTOK "$INSTDIR\${NAME}.old"
  ${EndIf}
!macroend

Section
  SetOutPath "$INSTDIR"
  !insertmacro MoveAside thermocline
  !insertmacro MoveAside thermocline-server
  ClearErrors
  File "${PROGRAMS}/thermocline.exe"
  File "${PROGRAMS}/thermocline-server.exe"
  File "${ROOT}/LICENSE-MIT"
  File "${ROOT}/LICENSE-APACHE"
  ${If} ${Errors}
    MessageBox MB_ICONSTOP "Thermocline cannot be written to $INSTDIR. Is it running?" /SD IDOK
    SetErrorLevel 2
    Abort
  ${EndIf}
  WriteUninstaller "$INSTDIR\uninstall.exe"
  CreateShortcut "$SMPROGRAMS\Thermocline.lnk" "$INSTDIR\thermocline.exe"

  WriteRegStr HKCU "${KEY}" "DisplayName" "Thermocline"
  WriteRegStr HKCU "${KEY}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${KEY}" "DisplayIcon" "$INSTDIR\thermocline.exe"
  WriteRegStr HKCU "${KEY}" "Publisher" "The Thermocline authors"
  WriteRegStr HKCU "${KEY}" "InstallLocation" "$INSTDIR"
  WriteRegStr HKCU "${KEY}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${KEY}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${KEY}" "NoModify" 1
  WriteRegDWORD HKCU "${KEY}" "NoRepair" 1
  ${GetSize} "$INSTDIR" "/S=0K" $0 $1 $2
  WriteRegDWORD HKCU "${KEY}" "EstimatedSize" $0
SectionEnd

Section "Uninstall"
  ClearErrors
  Delete "$INSTDIR\thermocline.exe"
  Delete "$INSTDIR\thermocline-server.exe"
  ${If} ${Errors}
    MessageBox MB_ICONSTOP "Thermocline cannot be removed while it is running." /SD IDOK
    SetErrorLevel 2
    Abort
  ${EndIf}
  Delete "$INSTDIR\thermocline.old"
  Delete "$INSTDIR\thermocline-server.old"
  Delete "$INSTDIR\LICENSE-MIT"
  Delete "$INSTDIR\LICENSE-APACHE"
  Delete "$INSTDIR\uninstall.exe"
  ; Only if nothing else is in it.
  RMDir "$INSTDIR"
  Delete "$SMPROGRAMS\Thermocline.lnk"
  DeleteRegKey HKCU "${KEY}"
SectionEnd
